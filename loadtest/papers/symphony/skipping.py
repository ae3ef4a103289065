"""What a figure shows whose data are not here."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from loadtest.papers.base import Results, Row

P = ParamSpec("P")
Rows = Callable[Concatenate[Results, P], list[Row]]


def unless_skipped(rows: Rows[P]) -> Rows[P]:
    """The figure's rows; one that says why in place of them, where it could not be measured."""

    @wraps(rows)
    def wrapped(results: Results, /, *args: P.args, **kwargs: P.kwargs) -> list[Row]:
        if "skipped" in results:
            return [Row(results["skipped"], "", "", "not measured")]
        return rows(results, *args, **kwargs)

    return wrapped
