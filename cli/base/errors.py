"""How every command ends that did not succeed."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from cli.base.reporting import complain
from shared.errors import SymphonyError


@contextmanager
def errors_in_a_line() -> Iterator[None]:
    """Expected failures as one line on stderr and exit status 1; Ctrl-C as status 130."""
    try:
        yield
    except SymphonyError as error:
        complain(error.message)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
