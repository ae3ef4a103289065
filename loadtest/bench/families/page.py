"""The part of docs/models.md that lists which families are served."""

import re
from collections.abc import Iterable
from importlib import metadata
from itertools import groupby
from pathlib import Path

from loadtest.bench.families.filling import filled
from loadtest.bench.families.rows import Row, families_of
from loadtest.bench.families.tables import served_families, tables
from loadtest.bench.families.variants import DEFAULT
from shared.errors import InvalidRequest

MARK = "<!-- From here on it is made by `./symphony bench families --write docs/models.md`. -->"
TABLES = "<!-- From here on by `./symphony bench families --tables --write docs/models.md`. -->"
_DETAIL = re.compile(r" \(.*|: \{.*", re.DOTALL)


def write(path: Path, rows: Iterable[Row]) -> None:
    """Replace what is behind the mark in the page.

    Raises:
        InvalidRequest: the page has no mark.
    """
    before, mark, _ = path.read_text().partition(MARK)
    if not mark:
        raise InvalidRequest(f"--write {path}: there is no line {MARK!r} in it")
    path.write_text(before + mark + "\n\n" + sections(list(rows)))


def write_tables(path: Path) -> None:
    """Replace what follows from the code alone, for the families that the page lists as served.

    Raises:
        InvalidRequest: the page lacks a mark.
    """
    page = path.read_text()
    before, mark, rest = page.partition(TABLES)
    _, end, after = rest.partition(MARK)
    if not (mark and end):
        raise InvalidRequest(f"--write {path}: there are no lines {TABLES!r} and {MARK!r} in it")
    made = tables(served_families(after))
    path.write_text(f"{before}{mark}\n\n{made}\n{end}{after}")


def sections(rows: list[Row]) -> str:
    """Markdown: the families that are served, and why others are not."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("transformers", "torch"))
    right, untried = families_of(rows, "right"), families_of(rows, "not tried")
    num = len({row.family for row in rows})
    served = (entry(family, _variants(rows, family, "right")) for family in right)
    return (
        f"With {versions}, {len(right)} families of {num} are served.\n\n"
        "## Served\n\n"
        "In parentheses: the options that were compared, if not just the default config.\n\n"
        f"{filled(served, ', ')}\n\n"
        "## Refused\n\n"
        "By the first reason that was found. `./symphony doctor --model FOLDER` gives details.\n\n"
        f"{_reasons(rows)}\n"
        "transformers could not make or run a small model of these, which are refused, too:\n"
        f"{filled((entry(family, []) for family in untried), ', ')}\n"
    )


def entry(family: str, variants: list[str]) -> str:
    """A family and its variants, which are left out where it has only the default one.

    >>> entry("opt", [DEFAULT, "biases"]), entry("opt", [DEFAULT])
    ('`opt` (default; biases)', '`opt`')
    """
    names = "; ".join("default" if each == DEFAULT else each for each in variants)
    return f"`{family}`" + ("" if variants in ([], [DEFAULT]) else f" ({names})")


def short_reason(reason: str) -> str:
    """A reason without its details.

    >>> short_reason("layer 0 has attention sinks (s_aux)")
    'layer 0 has attention sinks'
    """
    return _DETAIL.sub("", reason).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _variants(rows: list[Row], family: str, verdict: str) -> list[str]:
    return [row.variant for row in rows if (row.family, row.verdict) == (family, verdict)]


def _reasons(rows: list[Row]) -> str:
    """A line for each reason, the commonest first."""
    by_reason: dict[str, list[Row]] = {}
    for row in rows:
        if row.verdict == "refused":
            by_reason.setdefault(short_reason(row.reason), []).append(row)
    lines = ["| reason | families |", "|---|---|"]
    for reason, refused in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        entries = []
        for family, of_family in groupby(refused, key=lambda row: row.family):
            variants = [row.variant for row in of_family]
            is_all = len(variants) == sum(row.family == family for row in rows)
            # A lone default variant is named where others of the family have another verdict.
            named = entry(family, [] if is_all else variants)
            is_default = variants == [DEFAULT] and not is_all
            entries.append(f"{named} (default)" if is_default else named)
        lines.append(f"| {reason} | {', '.join(entries)} |")
    return "\n".join(lines) + "\n"
