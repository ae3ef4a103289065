"""How this command was called, for the commands that it tells its user to type."""

import os
import shlex
import shutil
import sys
from pathlib import Path

VARIABLE = "_SYMPHONY_CALLED_AS"  # the shell script `symphony` sets it
DEFAULT = "./symphony"


def called_as() -> str:
    """`symphony` if that is found on PATH, else as it was typed."""
    typed = os.environ.get(VARIABLE) or sys.argv[0]
    name = Path(typed).name
    if name != "symphony":  # a module, a test
        return DEFAULT
    on_path = shutil.which(name)
    return name if on_path is not None and on_path == typed else shlex.quote(typed)


def hint(command: str) -> str:
    """A command line to type.

    >>> hint("up")
    './symphony up'
    """
    return f"{called_as()} {command}"
