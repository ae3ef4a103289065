"""The names of all settings: complete, and anything else of ours is refused."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.base.children import ROOT
from cli.base.config import LauncherConfig
from services.frontend.config import FrontendConfig
from services.kvstore.config import KvstoreConfig
from services.scheduler.config import SchedulerConfig
from services.tracker.config import TrackerConfig
from services.worker.config import WorkerConfig
from shared.errors import ConfigError
from shared.runtime.config import ServiceConfig, load_config, settings_of
from shared.runtime.settings import (
    DEVELOPMENT_FIELDS,
    ENV_PREFIX,
    NAMES,
    OTHERS,
    REMOVED,
    SETTINGS,
    as_variables,
    read_variables,
)

CONFIGS: list[type[ServiceConfig]] = [
    FrontendConfig, KvstoreConfig, LauncherConfig, SchedulerConfig, TrackerConfig, WorkerConfig,
]  # fmt: skip
# That were settings in no release:
NEW_CONSTANTS = {"disk_read_mb_s", "num_hosts_here", "prompt_sent_bytes_max"}
NAME = re.compile(rf"\b{ENV_PREFIX}([A-Z][A-Z_]*[A-Z])\b(?!_)")


def test_the_list_is_what_the_services_read() -> None:
    settings = {name.upper() for kind in CONFIGS for name in settings_of(kind)}
    assert settings == SETTINGS
    assert not SETTINGS & OTHERS
    fields = {name for kind in CONFIGS for name in kind.model_fields}
    constants = fields - {name.lower() for name in settings}
    assert constants == DEVELOPMENT_FIELDS
    assert {name.upper() for name in constants - NEW_CONSTANTS} <= REMOVED.keys()
    assert not REMOVED.keys() & (SETTINGS | OTHERS)


def names_in(*paths: Path) -> Iterator[tuple[str, str]]:
    for path in paths:
        for name in NAME.findall(path.read_text()):
            yield name, path.name


def test_what_is_read_elsewhere_is_listed_and_nothing_else() -> None:
    files = [ROOT / "symphony", ROOT / "compose.yaml", ROOT / "Dockerfile"]
    code = [*(ROOT / "cli").glob("*.py"), *(ROOT / "loadtest").rglob("*.py")]
    used = dict(names_in(*files, *code, ROOT / "shared" / "runtime" / "settings.py"))
    assert {name: where for name, where in used.items() if name not in SETTINGS | OTHERS} == {}
    assert used.keys() >= OTHERS - {"ENV_FILE"}


def test_documented_names_exist() -> None:
    docs = dict(names_in(*(ROOT / "docs").glob("*.md"), ROOT / "README.md"))
    assert {name: where for name, where in docs.items() if ENV_PREFIX + name not in NAMES} == {}


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("SYMPHONY_LOG_LEVL", "SYMPHONY_LOG_LEVEL"),
        ("SYMPHONY_ARENA_BYTE", "SYMPHONY_ARENA_BYTES"),
        ("SYMPHONY_NATSURL", "SYMPHONY_NATS_URL"),
        ("symphony_model", "SYMPHONY_MODELS"),
    ],
)
def test_a_misspelled_name_is_refused_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(ServiceConfig, {name: "7", "PATH": "x"})
    assert caught.value.message == f"{name.upper()}='7': no such setting: do you mean {near}?"


def test_a_name_like_none_is_refused_without_a_guess() -> None:
    with pytest.raises(ConfigError, match=r"SYMPHONY_QQ='': no such setting$"):
        read_variables({"SYMPHONY_QQ": ""})


@pytest.mark.parametrize("name", sorted(REMOVED))
def test_a_removed_name_is_refused_with_the_value_that_is_fixed(name: str) -> None:
    why = f"SYMPHONY_{name}='7': this setting was removed, its value is now always {REMOVED[name]}"
    with pytest.raises(ConfigError, match=re.escape(why)):
        load_config(ServiceConfig, {f"SYMPHONY_{name}": "7"})


def test_removed_values_are_the_constants() -> None:
    for kind in CONFIGS:
        made = kind()
        for name in kind.model_fields.keys() & DEVELOPMENT_FIELDS - NEW_CONSTANTS:
            text = str(getattr(made, name)).lower().removesuffix(".0")
            assert text == REMOVED[name.upper()], name


def test_constants_of_an_environment_stay_beside_others() -> None:
    environ = as_variables({"link_mb_s": "8", "lora_start": "wait"})
    variables = environ | as_variables({"lora_start": "assist", "kv_bytes": "7"}, environ)
    config = load_config(WorkerConfig, variables)
    assert (config.link_mb_s, config.lora_start, config.kv_bytes) == (8.0, "assist", 7)


def test_developers_set_constants_of_processes_that_they_start() -> None:
    variables = as_variables({"link_mb_s": "8", "lora_start": "wait", "kv_bytes": "70000000"})
    config = load_config(WorkerConfig, variables)
    assert (config.link_mb_s, config.lora_start, config.kv_bytes) == (8.0, "wait", 70_000_000)
    assert load_config(KvstoreConfig, {"SYMPHONY_DEVELOPMENT": variables["SYMPHONY_DEVELOPMENT"]})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "no JSON"),
        ("[]", "must be a JSON object"),
        ('{"kv_bytes": 1}', "no such field: kv_bytes"),
        ('{"link_mb_s": "fast"}', "link_mb_s='fast'"),
    ],
)
def test_wrong_constants_are_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"SYMPHONY_DEVELOPMENT.*{why}"):
        load_config(WorkerConfig, {"SYMPHONY_DEVELOPMENT": text})


def test_the_file_counts_where_the_environment_is_silent(tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.write_text("# mine\nSYMPHONY_LOG_LEVEL=debug\nexport SYMPHONY_INSTANCE='3'\nOTHER=1\n")
    environ = {"SYMPHONY_ENV_FILE": str(path), "SYMPHONY_INSTANCE": "4"}
    config = load_config(ServiceConfig, environ)
    assert (config.log_level, config.instance) == ("debug", "4")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "SYMPHONY_LOG_LEVL=debug",
            "SYMPHONY_LOG_LEVL='debug' in .*: no such setting: do you mean",
        ),
        ("SYMPHONY_LOG_LEVEL", "SYMPHONY_LOG_LEVEL has no value"),
        ("SYMPHONY_LOG_LEVEL=loud", "SYMPHONY_LOG_LEVEL='loud': "),
    ],
)
def test_a_wrong_line_of_the_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "env"
    path.write_text(text + "\n")
    with pytest.raises(ConfigError, match=words):
        load_config(ServiceConfig, {"SYMPHONY_ENV_FILE": str(path)})


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    cases = {
        tmp_path / "none": "No such file",
        tmp_path: "Is a dir",
        tmp_path / "binary": "no text",
    }
    for path, words in cases.items():
        with pytest.raises(ConfigError, match=f"SYMPHONY_ENV_FILE='{path}': {words}"):
            read_variables({"SYMPHONY_ENV_FILE": str(path)})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SYMPHONY_NATS_URL", "nats://me:s3cret@host:port"),
        ("SYMPHONY_REDIS_URL", "me:s3cret@host"),
        ("SYMPHONY_API_KYE", "s3cret"),
        ("SYMPHONY_APIKEY", "s3cret"),
        ("SYMPHONY_NATS_URI", "nats://me:s3cret@host:1"),
    ],
)
def test_no_refusal_tells_a_secret(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        load_config(ServiceConfig, {name: value})
    assert "s3cret" not in caught.value.message


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (KvstoreConfig, "SYMPHONY_ARENA_BYTES", "1000"),
        (WorkerConfig, "SYMPHONY_MODELS", "my-model"),
        (WorkerConfig, "SYMPHONY_ONESHOT_VARIANTS", "[32, 0]"),
    ],
)
def test_wrong_values_are_named(kind: type[ServiceConfig], name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(kind, {name: value})
    assert caught.value.message.startswith(f"{name}={value!r}: ")
    assert "\n" not in caught.value.message
