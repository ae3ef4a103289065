"""What people see while it plays, and the table at the end."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.bar import Bar
from rich.console import RenderableType
from rich.table import Table

from loadtest.demo.script import SIDES, Part, Side
from loadtest.demo.seen import Seen, Which, where

ROWS_MAX = 14  # the newest turns; more do not fit a small terminal
NAME_WIDTH, WHERE_WIDTH = 14, 9
COLOURS: dict[Side, str] = {"without": "red", "with": "green"}
TABLE_COLOURS: dict[str, str] = {"computed": "yellow"} | {side: COLOURS[side] for side in SIDES}
HEADS: dict[Side, str] = {"without": "without hints", "with": "with hints"}
SHORT: dict[Side, str] = {"without": "without", "with": "hinted"}
COLUMNS = ("computed", *SIDES)
COLUMN_HEADS = ("computed again", *HEADS.values())
ROWS = {
    "ttft_ms_median": ("first token, p50", "ms"),
    "ttft_ms_p99": ("first token, p99", "ms"),
    "whole_s": ("whole time", "s"),
    "pool_percent": ("history next to the GPU", "%"),
    "host_percent": ("in host memory", "%"),
    "disk_percent": ("on disk", "%"),
    "peer_percent": ("on the other host", "%"),
    "computed_percent": ("computed again", "%"),
    "turns": ("turns", ""),
}


def rows_of(seen: Sequence[Seen], part: Part) -> list[tuple[Which, dict[Side, Seen]]]:
    """The newest turns by name, each with what was seen of it on either side so far."""
    rows: dict[Which, dict[Side, Seen]] = {}
    for each in seen:
        if each.which.part == part:
            rows.setdefault(each.which, {})[each.side] = each
    newest = sorted(rows, key=lambda which: (which.run, which.number))[-ROWS_MAX:]
    return [(which, rows[which]) for which in newest]


def screen(seen: Sequence[Seen], part: Part, title: str) -> RenderableType:
    """Both sides, turn by turn; `kept` are tokens that were not computed again."""
    rows = rows_of(seen, part)
    longest_ms = max((each.ttft_ms for _, sides in rows for each in sides.values()), default=1.0)
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), expand=True)
    table.add_column("turn", width=NAME_WIDTH, no_wrap=True)
    for side in SIDES:
        table.add_column(SHORT[side], ratio=1, style=COLOURS[side], no_wrap=True)
        table.add_column("ms", justify="right", width=5)
        table.add_column("kept", justify="right", width=5)
        table.add_column("was in", width=WHERE_WIDTH, no_wrap=True, style="dim")
    for which, sides in rows:
        cells: list[RenderableType] = [f"{which.who}, {which.number + 1}"]
        for side in SIDES:
            cells += _cells(sides.get(side), longest_ms, COLOURS[side])
        table.add_row(*cells)
    return table


def _cells(seen: Seen | None, longest_ms: float, colour: str) -> list[RenderableType]:
    if seen is None:
        return [""] * 4
    bar = Bar(longest_ms, 0, seen.ttft_ms, color=colour)
    return [bar, f"{seen.ttft_ms:.0f}", str(seen.num_cached), where(seen)]


def table_of(figures: Mapping[str, Any], title: str) -> Table:
    """A part's figures."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2))
    table.add_column("")
    for column, head in zip(COLUMNS, COLUMN_HEADS, strict=True):
        table.add_column(head, justify="right", style=TABLE_COLOURS[column])
    for label, values in cells_of(figures):
        table.add_row(label, *values)
    return table


def cells_of(figures: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Each figure's name, and its text for each of `COLUMNS`.

    >>> bare = dict.fromkeys(ROWS, 316.2)
    >>> cells_of({"computed": {"turns": 18}, "without": bare, "with": bare})[0]
    ('first token, p50', ['', '316 ms', '316 ms'])
    """
    return [
        (label, [_cell(figures[column].get(name), unit) for column in COLUMNS])
        for name, (label, unit) in ROWS.items()
    ]


def _cell(value: float | None, unit: str) -> str:
    return "" if value is None else f"{_number(value, unit)} {unit}".strip()


def _number(value: float, unit: str) -> str:
    return f"{value:,.1f}" if unit == "s" else f"{value:,.0f}"


def hints_line(hints: Mapping[str, Mapping[str, int]]) -> str:
    """What became of hints, as the deployment counts.

    >>> hints_line({"advisories": {"submitted": 18, "used": 18}, "by_house": {}})
    'hints, as the deployment counts them: 18 submitted, 18 used'
    """
    sent = ", ".join(f"{num} {name}" for name, num in hints.get("advisories", {}).items())
    line = f"hints, as the deployment counts them: {sent or 'none'}"
    if own := hints.get("by_house"):
        line += (
            f"; foreseen by the deployment itself: {', '.join(f'{n} {k}' for k, n in own.items())}"
        )
    return line
