"""Settings: read from the environment, refused with a name."""

import os
from pathlib import Path

import pytest

from services.scheduler.config import SchedulerConfig
from shared.errors import ConfigError
from shared.runtime import config
from shared.runtime.config import ServiceConfig, default_host_id, load_config
from shared.runtime.settings import ENV_PREFIX


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(ENV_PREFIX):
            monkeypatch.delenv(name)


def test_defaults_are_this_machine_s() -> None:
    settings = load_config(ServiceConfig)
    assert settings.nats_url == "nats://127.0.0.1:4222"
    assert settings.host_id == default_host_id()
    assert settings.data_dir == Path.home() / ".symphony"
    assert settings.metrics_port == 0


def test_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMPHONY_DATA_DIR", "~/elsewhere")
    monkeypatch.setenv("SYMPHONY_INSTANCE", "7")
    settings = load_config(ServiceConfig)
    assert (settings.data_dir, settings.instance) == (Path.home() / "elsewhere", "7")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SYMPHONY_LOG_LEVEL", "loud"),
        ("SYMPHONY_METRICS_PORT", "http"),
        ("SYMPHONY_INSTANCE", "a.b"),
        ("SYMPHONY_HOST_ID", ""),
    ],
)
def test_a_wrong_value_is_named_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        load_config(ServiceConfig)
    assert caught.value.message.startswith(f"{name}={value!r}: ")


def test_a_wrong_value_ends_the_start_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SYMPHONY_LOG_LEVEL", "loud")
    with pytest.raises(SystemExit) as caught:
        config.load_config_or_exit(ServiceConfig)
    assert caught.value.code == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_values_that_are_wrong_beside_each_other_are_told_in_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(
            SchedulerConfig, {"SYMPHONY_SCHEDULER_ROLE": "shard", "SYMPHONY_SCHEDULER_SHARD": "1"}
        )
    assert caught.value.message == (
        "SYMPHONY_SCHEDULER_SHARD 1 must be below SYMPHONY_SCHEDULER_SHARDS (1)"
    )


def test_settings_do_not_change() -> None:
    settings = load_config(ServiceConfig)
    with pytest.raises(ValueError, match="frozen"):
        settings.instance = "1"


@pytest.mark.parametrize(
    ("hostname", "expected"),
    [("box", "box"), ("box.example.org", "box-example-org"), ("", "host"), ("x" * 70, "x" * 64)],
)
def test_a_machine_s_name_becomes_part_of_a_subject(
    monkeypatch: pytest.MonkeyPatch, hostname: str, expected: str
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: hostname)
    assert default_host_id() == expected
