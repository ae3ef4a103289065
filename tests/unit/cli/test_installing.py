"""By uv with pip's settings, or by pip: which, with what, and what happens when uv fails."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from cli import installed
from cli.bootstrap import EXTRAS, Environment
from cli.installing import UV, Installer, uv_settings

MIRRORED = """\
:env:.cert='/etc/ours.pem'
:env:.default-timeout='180'
:env:.find-links='/opt/wheels'
download.no-binary=':all:'
global.constraint='/etc/caps.txt'
global.extra-index-url='file:///a/simple\\nfile:///b/simple'
global.find-links='/opt/old'
global.index-url='https://me:secret@packages.example/simple'
install.no-warn-script-location='true'
"""
# A stand-in: says what it was called with, and does as it is told by files beside it.
PROGRAM = """#!/bin/sh
here=$(dirname "$0")
case "$*" in *"config list"*) cat "$here/config"; exit 0;; esac
said="$UV_HTTP_RETRIES $SSL_CERT_FILE $UV_INDEX_URL $UV_EXTRA_INDEX_URL"
echo "$(basename "$0") $* [$said]" >> "$here/calls"
echo "ERROR: it is $(basename "$0")"
[ ! -e "$here/$(basename "$0").fails" ]
"""


@pytest.fixture
def binaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of an environment whose Python and uv only say what they were asked."""
    for name in ("SSL_CERT_FILE", "UV_HTTP_RETRIES", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "config").write_text(MIRRORED)
    for name in ("python", "uv"):
        (tmp_path / name).write_text(PROGRAM)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def make(binaries: Path) -> Installer:
    return Installer(binaries / "python", binaries / "install.log", binaries, compiles=False)


def calls(binaries: Path) -> list[str]:
    """What was called with which arguments, but for uv's own coming."""
    lines = (binaries / "calls").read_text().splitlines()
    return [line for line in lines if UV not in line]


def test_pip_s_settings_are_told_to_uv() -> None:
    settings = uv_settings(MIRRORED)
    assert settings is not None
    # The environment prevails over files, as in pip.
    assert settings.options == ["--constraint", "/etc/caps.txt", "--find-links", "/opt/wheels"]
    assert settings.variables == {
        "UV_INDEX_URL": "https://me:secret@packages.example/simple",
        "UV_EXTRA_INDEX_URL": "file:///a/simple file:///b/simple",
        "SSL_CERT_FILE": "/etc/ours.pem",
        "UV_HTTP_TIMEOUT": "180",
    }


@pytest.mark.parametrize(
    "line",
    [
        "install.require-hashes='true'",
        "global.client-cert='/x'",
        ":env:.no-index='1'",
        "global.cert='",
    ],
)
def test_a_setting_that_uv_cannot_be_told_leaves_it_to_pip(binaries: Path, line: str) -> None:
    assert uv_settings(line) is None
    (binaries / "config").write_text(line)
    assert make(binaries).install("--editable", "x")
    (call,) = calls(binaries)
    assert call.startswith("python -m pip install")


def test_uv_installs_and_is_fetched_once(binaries: Path) -> None:
    installer = make(binaries)
    assert installer.install("--no-deps", "torch") and installer.install("--editable", "x")
    first, second = calls(binaries)
    assert first.startswith("uv pip install --python ") and "--no-deps torch [" in first
    line, _, variables = second.partition(" [")
    assert "secret" not in line, "everybody can read a command line"
    index = "https://me:secret@packages.example/simple file:///a/simple file:///b/simple"
    assert variables == f" /etc/ours.pem {index}]"
    assert (binaries / "calls").read_text().count(UV) == 1


def test_what_uv_cannot_do_pip_tries_once_if_once_is_meant(binaries: Path) -> None:
    (binaries / "uv.fails").touch()
    assert make(binaries).install("--index-url", "https://far.example", "torch", once=True)
    by_uv, by_pip = calls(binaries)
    assert by_uv.startswith("uv ") and "[0 /etc/ours.pem " in by_uv
    assert "--index-url https://far.example torch" in by_uv, "which prevails over the environment"
    assert by_pip.startswith("python -m pip install")
    assert "--retries 0 --timeout 10 --index-url https://far.example torch [ " in by_pip


def test_both_fail(binaries: Path) -> None:
    installer = make(binaries)
    assert installer.install("--editable", "x")  # there is a uv now
    (binaries / "uv.fails").touch()
    (binaries / "python.fails").touch()
    assert not installer.install("--editable", "x")
    assert (binaries / "install.log").read_text().splitlines()[-2:] == [
        "ERROR: it is uv", "ERROR: it is python",
    ]  # fmt: skip


@pytest.mark.parametrize("compiles", [False, True])
def test_modules_are_compiled_now_or_when_they_are_imported(binaries: Path, compiles: bool) -> None:
    log = binaries / "install.log"
    installer = Installer(binaries / "python", log, binaries, compiles=compiles)
    assert installer.install("x") and installer.pip("y")
    by_uv, by_pip = calls(binaries)
    assert ("--compile-bytecode" in by_uv) == compiles == ("--no-compile" not in by_pip)


def test_without_uv_it_is_pip(binaries: Path) -> None:
    (binaries / "uv").unlink()  # though pip said that it had installed it
    assert make(binaries).install("--editable", "x")
    (call,) = calls(binaries)
    assert call.startswith("python -m pip install")


def test_an_installed_application_adds_what_a_command_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    added: list[tuple[set[str], list[str]]] = []
    monkeypatch.setattr(Environment, "add", lambda _, *what: added.append(what))
    monkeypatch.setattr("cli.main.main", lambda: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    for line in (["up", "--model", "demo"], ["status"], ["up", "--emulate", "zero"]):
        monkeypatch.setattr(sys, "argv", ["symphony", *line])
        installed.main()
    [(extras, requirements)] = added
    assert extras == {"worker"}
    names = {re.split(r"[<>=]", each)[0] for each in requirements}
    assert names == {"torch", "numba", "accelerate", "gguf"}


def test_every_extra_of_a_command_has_a_proof() -> None:
    assert set().union(*EXTRAS.values()) <= installed.PROOFS.keys()
