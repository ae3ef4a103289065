"""``python -m cli.help > cli/help.txt``: every command's help, for where nothing is installed yet.

A test holds the file equal to what this prints.
"""

import io
from contextlib import redirect_stdout
from pathlib import Path

import typer.main

from cli.main import NAME, app

HELP_FILE = Path(__file__).with_name("help.txt")


def render_help() -> str:
    """The command line's help, and then that of each command; each begins with its usage."""
    command = typer.main.get_command(app)
    names = [info.callback.__name__ for info in app.registered_commands if info.callback]
    text = io.StringIO()
    with redirect_stdout(text):
        for words in ([], *([name] for name in names)):
            command.main([*words, "--help"], prog_name=NAME, standalone_mode=False)
            print()
    return text.getvalue().rstrip("\n") + "\n"


if __name__ == "__main__":
    print(render_help(), end="")
