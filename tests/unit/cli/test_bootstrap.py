"""What each command needs installed, and when nothing is missing."""

import json
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cli import bootstrap, installing
from cli.bootstrap import (
    ROOT,
    BootstrapError,
    Environment,
    help_of,
    missing_extras,
    needed_extras,
    wanted_help,
)
from cli.help import HELP_FILE, render_help
from cli.installing import Installer
from cli.main import app
from loadtest.deployment import environment


@pytest.mark.parametrize(
    ("line", "extras"),
    [
        ("up", {"worker"}),
        ("up --model x", {"worker"}),
        ("up --emulate zero", set()),
        ("up --emulate=zero", set()),
        ("up --workers 0", set()),
        ("up --workers=0", set()),
        ("up --workers 2", {"worker"}),
        ("up --no-worker", set()),
        ("up --help", set()),
        ("up -h", set()),
        ("--help", set()),
        ("bench --help", set()),
        ("bench --json -h", set()),
        ("bench http --help", {"worker", "loadtest"}),
        ("test -- --help", {"worker", "test"}),
        ("", set()),
        ("status --json", set()),
        ("down", set()),
        ("chat", set()),
        ("doctor", set()),
        ("docs --serve", {"docs"}),
        ("test", {"worker", "test"}),
        ("bench resume", {"worker", "loadtest"}),
        ("demo --quick", {"demo"}),
        ("adapters list", set()),
        ("adapters add check DIR", set()),
        ("adapters check DIR --base x", {"worker"}),
        ("adapters check --help", set()),
    ],
)
def test_extras_of_a_command(line: str, extras: set[str]) -> None:
    assert needed_extras(line.split()) == extras


def test_only_what_is_missing_is_installed(tmp_path: Path) -> None:
    stamp = tmp_path / "stamp"
    assert missing_extras(stamp, "d", set()) == set()
    stamp.write_text(json.dumps({"digest": "d", "extras": ["worker"]}))
    assert missing_extras(stamp, "d", set()) is None
    assert missing_extras(stamp, "d", {"worker"}) is None
    assert missing_extras(stamp, "d", {"test"}) == {"test", "worker"}
    assert missing_extras(stamp, "another", set()) == {"worker"}
    stamp.write_text("damaged")
    assert missing_extras(stamp, "d", set()) == set()


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("")
    with pytest.raises(BootstrapError, match="not touched"):
        Environment(tmp_path).ensure()
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize("fails", [False, True])
def test_installs_once_and_only_after_success_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    folder = tmp_path / "venv"
    installed: list[set[str]] = []

    def ensure(environment: Environment) -> None:
        environment.python.parent.mkdir(parents=True, exist_ok=True)
        environment.python.touch()

    def install(_: Environment, extras: set[str]) -> None:
        installed.append(extras)
        if fails:
            raise BootstrapError("no network")

    monkeypatch.setenv("SYMPHONY_VENV", str(folder))
    monkeypatch.setattr(Environment, "ensure", ensure)
    monkeypatch.setattr(Environment, "install", install)
    for _ in range(2):
        if fails:
            with pytest.raises(BootstrapError):
                bootstrap.prepare(["up"])
        else:
            assert bootstrap.prepare(["up"]) == folder / "bin" / "python"
    assert installed == ([{"worker"}] * 2 if fails else [{"worker"}])


def test_torch_without_a_gpu_is_the_small_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[str, ...]] = []

    def install(_: Installer, *arguments: str, once: bool = False) -> bool:
        assert once == ("--index-url" in arguments), "an index that may be out of reach"
        tried.append(arguments)
        return arguments == ("--no-deps", bootstrap.TORCH) or "--editable" in arguments

    monkeypatch.setattr(Installer, "install", install)
    monkeypatch.setattr(bootstrap, "has_gpu", lambda: False)
    monkeypatch.delenv("SYMPHONY_TORCH_SPEC", raising=False)
    Environment(tmp_path).install({"worker"})
    assert [arguments[0] for arguments in tried] == [
        "--no-index", "--no-deps", "--no-deps", "--constraint",
    ]  # fmt: skip
    assert bootstrap.TORCH_CPU_INDEX in tried[1]
    assert tried[3][-1].endswith("[worker]")


def test_torch_in_pip_s_words_is_for_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[str, ...]] = []

    def pip(_: Installer, *arguments: str, once: bool = False) -> bool:
        tried.append(arguments)
        return True

    monkeypatch.setattr(Installer, "pip", pip)
    monkeypatch.setattr(Installer, "install", lambda *_: True)
    monkeypatch.setenv("SYMPHONY_TORCH_SPEC", "--pre torch>=2.14")
    Environment(tmp_path).install({"worker"})
    assert tried == [("--pre", "torch>=2.14")]


def test_what_was_tested_is_installed_or_else_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[str, ...]] = []

    def install(_: Installer, *arguments: str) -> bool:
        tried.append(arguments)
        return "--constraint" not in arguments

    monkeypatch.setattr(Installer, "install", install)
    Environment(tmp_path).install({"test"})
    (tested, any_version) = tried
    assert tested[:2] == ("--constraint", str(bootstrap.CONSTRAINTS))
    assert tested[2:] == any_version and any_version[0] == "--editable"


def test_what_cannot_be_installed_is_said_in_pip_s_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def install(installer: Installer, *_: str) -> bool:
        (tmp_path / "install.log").write_text("ERROR: no such package\nERROR: no network\nbye\n")
        return False

    monkeypatch.setattr(Installer, "install", install)
    with pytest.raises(BootstrapError, match=r"^no network \(log: .*install.log\)$"):
        Environment(tmp_path).install({"test"})


def test_every_dependency_has_a_tested_version_in_its_range() -> None:
    lines = bootstrap.CONSTRAINTS.read_text().splitlines()
    tested = [Requirement(line.partition("#")[0]) for line in lines if not line.startswith("#")]
    versions = {canonicalize_name(each.name): next(iter(each.specifier)).version for each in tested}
    assert len(versions) == len(tested)
    versions[canonicalize_name("torch")] = bootstrap.TORCH.partition("==")[2]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    for each in map(Requirement, chain(project["dependencies"], *extras)):
        assert each.specifier.contains(versions[canonicalize_name(each.name)]), each


def test_needs_nothing_but_the_standard_library() -> None:
    code = "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; " + (
        "import runpy; [runpy.run_path(path) for path in sys.argv[1:]]"
    )
    files = [bootstrap.__file__, installing.__file__]
    subprocess.run([sys.executable, "-I", "-S", "-c", code, *files], check=True)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("", ""),
        ("-h", ""),
        ("--help up", ""),
        ("up --model x --help", "up"),
        ("status -h", "status"),
        ("bench --help", "bench"),
        ("adapters --help", "adapters"),
        ("adapters add x --help", "adapters add"),
        ("bench resume --help", None),
        ("test -- --help", None),
        ("status", None),
    ],
)
def test_whose_help_is_wanted(line: str, command: str | None) -> None:
    assert wanted_help(line.split()) == command


def test_the_help_file_is_what_the_command_line_prints() -> None:
    assert HELP_FILE.read_text() == render_help(), "run: python -m cli.help > cli/help.txt"


def test_every_command_has_its_section() -> None:
    for info in app.registered_commands:
        assert info.callback is not None
        name = info.name or info.callback.__name__
        text = help_of(name)
        assert text is not None and text.startswith(f"Usage: symphony {name} [")
        assert text.count("Usage: ") == 1
    assert help_of("nonsense") is None


@pytest.mark.parametrize(
    ("line", "status", "first"),
    [
        ("--help", 0, "Usage: symphony [OPTIONS] COMMAND"),
        ("up -h", 0, "Usage: symphony up [OPTIONS]"),
        ("bench --help", 0, "Usage: symphony bench [OPTIONS]"),
        ("adapters add --help", 0, "Usage: symphony adapters add [OPTIONS]"),
        ("", 2, "Usage: symphony [OPTIONS] COMMAND"),
    ],
)
def test_help_installs_nothing(tmp_path: Path, line: str, status: int, first: str) -> None:
    done = subprocess.run(
        [str(ROOT / "symphony"), *line.split()],
        env=environment({"SYMPHONY_VENV": str(tmp_path / "venv")}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert (done.stdout if line else done.stderr).startswith(first)
    assert not (tmp_path / "venv").exists()
