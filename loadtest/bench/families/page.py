"""The page of families that are served."""

import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from loadtest.bench.families.rows import Row, families_of
from shared.errors import InvalidRequest

_NUMBERS = re.compile(r" \(at position \d+ by [^)]*\)")  # which are this machine's
NOT_TRIED = "no small model of their config could be made or run by transformers."
MARK = "<!-- From here on it is made by `./symphony bench families --write docs/models.md`. -->"


def write(path: Path, rows: Iterable[Row]) -> None:
    """Put the tables behind the mark in the page.

    Raises:
        InvalidRequest: it has none.
    """
    before, mark, _ = path.read_text().partition(MARK)
    if not mark:
        raise InvalidRequest(f"--write {path}: there is no line {MARK!r} in it")
    path.write_text(before + mark + "\n\n" + tables(list(rows)))


def tables(rows: list[Row]) -> str:
    """Markdown: a section for each verdict."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("transformers", "torch"))
    right = families_of(rows, "right")
    num = len({row.family for row in rows})
    parts = [f"With {versions}, {len(right)} families of {num} are served.\n"]
    for title, families, text in (
        ("## Served", right, "With the options that say so."),
        ("## Refused", families_of(rows, "refused"), "Each with the first reason that was found."),
        ("## Not tried", families_of(rows, "not tried"), "These are refused, too: " + NOT_TRIED),
    ):
        parts.append(f"{title}\n\n{text}\n\n{table(rows, families)}")
    return "\n".join(parts)


def table(rows: Iterable[Row], families: list[str]) -> str:
    """A line for each variant of these families."""
    lines = ["| family | options | |", "|---|---|---|"]
    lines += [line(row) for row in rows if row.family in families]
    return "\n".join(lines) + "\n"


def line(row: Row) -> str:
    """Of the table."""
    verdict = "served" if row.verdict == "right" else _escaped(_NUMBERS.sub("", row.reason))
    return f"| `{row.family}` | {_escaped(row.variant)} | {verdict} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
