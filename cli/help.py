"""``python -m cli.help > cli/help.txt``: every command's help, for where nothing is installed yet.

A test holds the file equal to what this prints.
"""

import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import typer.main

from cli.main import NAME, app

HELP_FILE = Path(__file__).with_name("help.txt")


def render_help() -> str:
    """The command line's help, and then that of each command; each begins with its usage."""
    command = typer.main.get_command(app)
    text = io.StringIO()
    with redirect_stdout(text):
        for words in _commands(command):
            command.main([*words, "--help"], prog_name=NAME, standalone_mode=False)
            print()
    return text.getvalue().rstrip("\n") + "\n"


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Every command's words, a group before what is in it."""
    yield list(words)
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*words, name))


if __name__ == "__main__":
    print(render_help(), end="")
