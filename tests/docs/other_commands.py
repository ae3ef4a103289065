"""Commands of other programs in the docs. Each is held against what of it is in the repository,
and says why it does not run here.
"""

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import yaml

from cli.base.children import ROOT
from tests.docs.own_commands import check_settings
from tests.docs.shell import Command

Check = Callable[[Command], None]
LOCUST_S_OWN = {"--host", "--profile", "--headless", "--processes", "--expect-workers"}


@dataclass(frozen=True, slots=True)
class Other:
    """A program.

    Attributes:
        reason: why no test runs it.
        check: what can be said of it all the same.
    """

    reason: str
    check: Check


def exported(command: Command) -> dict[str, str]:
    """What an ``export`` sets."""
    pairs = (word.partition("=") for word in command.words[1:])
    return {name: value for name, _, value in pairs}


def _anything(_: Command) -> None:
    """Nothing of ours is in it."""


def _docker(command: Command) -> None:
    check_settings(command.settings)
    if command.words[1] == "compose":
        _compose(command.words[2:])
    elif command.words[1] == "build":
        stages = re.findall(r"^FROM .* AS (\w+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
        target = command.words[command.words.index("--target") + 1]
        assert target in stages, f"the Dockerfile has no {target}"


def _compose(words: list[str]) -> None:
    text = yaml.safe_load((ROOT / "compose.yaml").read_text())
    services = text["services"]
    profiles = {name for each in services.values() for name in each.get("profiles", ())}
    for option, value in pairwise(words):
        if option == "--profile":
            assert value in profiles, f"compose.yaml has no profile {value}"
        elif option == "--scale" or option in ("exec", "logs", "cp"):
            name = re.split(r"[=:]", value)[0]
            assert name.startswith("-") or name in services, f"compose.yaml has no {name}"


def _kubectl(command: Command) -> None:
    for option, value in pairwise(command.words):
        if option in ("-f", "-k") and value != "-":
            assert (ROOT / value).exists(), f"no {value}"


def _pip(command: Command) -> None:
    for word in command.words[1:]:
        if found := re.fullmatch(r"(\./[\w/]+)(?:\[([\w,-]+)\])?", word):
            told = tomllib.loads((ROOT / found[1] / "pyproject.toml").read_text())
            known = told["project"].get("optional-dependencies", {})
            assert set((found[2] or "").split(",")) <= {"", *known}, f"{word}: no such extra"


def _locust(command: Command) -> None:
    words = command.words
    file = ROOT / words[words.index("-f") + 1]
    ours = file.read_text()
    for word in words:
        if word.startswith("--") and word not in LOCUST_S_OWN:
            assert f'"{word}"' in ours, f"{file.name} has no {word}"


def _cat(command: Command) -> None:
    """What it writes is there for the commands behind it."""
    if command.into:
        Path(command.into).write_text(command.stdin)


SHELL = Other("part of a shell, or of every Unix", _anything)
OTHERS = {
    "": Other("sets variables alone", lambda command: check_settings(command.settings)),
    "export": Other("sets variables alone", lambda command: check_settings(exported(command))),
    "cat": Other("writes a file of the page's own, and that is done", _cat),
    **dict.fromkeys(("echo", "printf", "grep", "tail", "tr", "cut", "base64", "install"), SHELL),
    **dict.fromkeys(("sha256sum", "openssl", "kill"), SHELL),
    "git": Other("clones this repository, which the reader has the address of", _anything),
    "cd": Other("goes to where that is", _anything),
    "docker": Other("needs a Docker daemon, and builds for minutes", _docker),
    "kubectl": Other("needs a cluster", _kubectl),
    "pip": Other("installs from an index", _pip),
    "npm": Other("installs from a registry", _anything),
    "st": Other("schemathesis is installed apart, and runs for half an hour", _anything),
    "locust": Other("tests/unit/loadtest/users runs its users; alone it runs until told", _locust),
}
