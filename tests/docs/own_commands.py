"""Commands of ours in the docs, held against the programs themselves: nothing of them runs."""

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from cli.adapters.hub import parse_hub
from cli.base.children import ROOT
from cli.base.config import LauncherConfig
from cli.main import NAME, app
from cli.supervisor.preflight import CONFIGS
from loadtest.bench.figures import choose, figure_set
from loadtest.commands.bench import BENCHES
from shared.runtime.config import ServiceConfig, load_config
from tests.docs.shell import Command

SERVICE = "services."


class Incomplete(Exception):
    """A command without all of its arguments: in prose, that is its name."""


def check_settings(settings: dict[str, str]) -> None:
    """Variables of ours exist and may have these values; a value of the shell's own is not looked
    into.
    """
    ours = {
        name: str(Path(value).expanduser()) if value.startswith("~") else value
        for name, value in settings.items()
        if name.startswith("SYMPHONY_") and "$" not in value
    }
    kinds: list[type[ServiceConfig]] = [LauncherConfig, *CONFIGS.values()]
    for kind in kinds:
        load_config(kind, ours)


def check_symphony(command: Command) -> None:
    """``./symphony ...``: the command exists, with these options and values."""
    check_settings(command.settings)
    words = command.words[1:]
    if words == ["--version"]:  # parsing it would print one and end
        return
    _parse(typer.main.get_command(app), words)
    if words[0] == "up":
        _check_up(words)
    elif words[0] == "bench" and words[1:]:
        _check_bench(words[1], words[2:])
    elif words[0] == "test":
        paths, _, marks = " ".join(words).partition("test")[2].partition(" -m ")
        assert marks in {"", "slow", "gpu"}, f"no test is marked {marks}"
        for path in paths.split():
            assert (ROOT / path).exists(), f"no {path}"
    elif words[:2] == ["adapters", "add"] and words[3].startswith("hub:"):
        parse_hub(words[3])


def _parse(command: Any, words: Sequence[str], parent: Any = None) -> None:
    """As `app` would before it calls anything."""
    try:
        context = command.make_context(parent and words[0], [*words[bool(parent) :]], parent=parent)
        if hasattr(command, "resolve_command"):
            rest = [*context._protected_args, *context.args]
            _, inner, _ = command.resolve_command(context, rest)
            _parse(inner, rest, context)
    except Exception as error:
        message = getattr(error, "message", "") or str(error)
        kind = Incomplete if "issing" in message or "requires an arg" in message else AssertionError
        raise kind(f"{NAME}: {message}") from None


def _check_up(words: Sequence[str]) -> None:
    """Everything that `up` says no to before it starts anything."""
    started: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cli.up.up", lambda options, _: started.append(options))
        patch.setattr("cli.start.ahead.begun", lambda **_: nullcontext())
        result = CliRunner().invoke(app, [*words])
    assert started, result.output


def _check_bench(name: str, argv: Sequence[str]) -> None:
    assert name in BENCHES, f"no benchmark {name!r}"
    own = [word for word in argv if word != "--json"]  # `bench` itself takes that
    found = parsed(lambda: importlib.import_module(BENCHES[name]).run(own))
    if name == "figures":
        choose(figure_set(found.set), found.only)


class _Parsed(Exception):
    """What a program was told; nothing else of it is wanted."""

    def __init__(self, namespace: argparse.Namespace) -> None:
        self.namespace = namespace


@contextmanager
def _stopped_behind_its_arguments() -> Iterator[None]:
    real = argparse.ArgumentParser.parse_args

    def stop(parser: argparse.ArgumentParser, *given: Any) -> argparse.Namespace:
        raise _Parsed(real(parser, *given))

    def refuse(parser: argparse.ArgumentParser, message: str) -> None:
        kind = Incomplete if "required" in message else AssertionError
        raise kind(f"{parser.prog}: {message}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        patch.setattr(argparse.ArgumentParser, "error", refuse)
        yield


def parsed(run: Callable[[], object]) -> argparse.Namespace:
    """What `run` reads from its arguments, after which it is stopped."""
    with _stopped_behind_its_arguments():
        try:
            run()
        except _Parsed as found:
            return found.namespace
    raise AssertionError("it reads no arguments")


def check_python(command: Command) -> None:
    """``python -m MODULE`` or ``python FILE`` of the repository, with these arguments."""
    check_settings(command.settings)
    if command.words[1] == "-c":
        compile(command.words[2], "-c", "exec")
        return
    if command.words[1] != "-m":
        file, argv = ROOT / command.words[1], command.words[2:]
        assert file.is_file(), f"no {command.words[1]}"
        if not argv and "argparse" not in file.read_text():
            return  # it takes none, and wants a framework
        _check_program(file.stem, argv)
        return
    module, argv = command.words[2], command.words[3:]
    if module == "venv":
        return
    assert importlib.util.find_spec(module) is not None, f"no module {module}"
    if module.startswith(SERVICE):
        assert importlib.util.find_spec(f"{module}.__main__") is not None
        assert not argv, "a service takes no arguments"
    elif module == "cli.health":
        assert argv and f"{SERVICE}{argv[0]}" in {f"{SERVICE}{name}" for name in CONFIGS}
    elif module == "cli.setup_kubernetes":
        assert len(argv) in (1, 2)
    else:
        is_folder = (ROOT / module.replace(".", "/")).is_dir()
        _check_program(f"{module}.__main__" if is_folder else module, argv)


def _check_program(module: str, argv: Sequence[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [module, *argv])
        parsed(importlib.import_module(module).main)
