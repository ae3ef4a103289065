"""The command `symphony` of an installed application (`pipx install .`, `uv tool install .`).

What a command line needs beyond the base is installed into the environment of the application.
"""

import importlib.util
import sys
from collections.abc import Iterable
from importlib.metadata import requires
from pathlib import Path

from cli.bootstrap import BootstrapError, Environment, needed_extras, say

DISTRIBUTION = "symphony-serving"
PROOFS = {  # of an extra: a module that comes with it alone
    "worker": "numba", "loadtest": "locust", "top": "textual", "docs": "material",
    "demo": "openai", "test": "xdist",
}  # fmt: skip


def missing_extras(argv: list[str]) -> set[str]:
    """Extras that a command line needs and that are not installed."""
    return {
        extra for extra in needed_extras(argv) if importlib.util.find_spec(PROOFS[extra]) is None
    }


def requirements_of(extras: Iterable[str]) -> list[str]:
    """What belongs to extras, as this distribution's metadata says."""
    from packaging.requirements import Requirement

    wanted = [Requirement(text) for text in requires(DISTRIBUTION) or ()]
    return [
        f"{each.name}{each.specifier}" if not each.extras else str(each).partition(";")[0]
        for each in wanted
        if each.marker is not None
        and any(each.marker.evaluate({"extra": extra}) for extra in extras)
        and not each.marker.evaluate({"extra": ""})
    ]


def main() -> None:
    """Install what is missing, then run the command."""
    try:
        if (extras := missing_extras(sys.argv[1:])) and sys.prefix != sys.base_prefix:
            Environment(Path(sys.prefix)).add(extras, requirements_of(extras))
    except BootstrapError as error:
        say(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    from cli.main import main as run

    run()
