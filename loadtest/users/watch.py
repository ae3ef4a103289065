"""`--watch`: what a run has seen so far, as a table that is kept up to date."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadtest.users.measures import Turn, summarise


def screen(turns: Sequence[Turn], num_users: int, seconds: float) -> RenderableType:
    """All that is shown."""
    found = summarise(turns, seconds)
    table = Table(box=None, padding=(0, 2), title_justify="left")
    table.add_column("turns")
    for name in ("how many", "TTFT p50 ms", "p99 ms", "cached"):
        table.add_column(name, justify="right")
    for kind, seen in found["kinds"].items():
        ttft = seen["ttft_ms"]
        cached = f"{seen['cached_percent']:.0f} %"
        table.add_row(kind, str(seen["turns"]), f"{ttft['p50']:.0f}", f"{ttft['p99']:.0f}", cached)
    tpot, hints = found["tpot_ms"], found["hints"]
    outcomes = ", ".join(f"{name} {num}" for name, num in hints.items()) or "none yet"
    head = (
        f"{seconds:.0f} s, {num_users} users, {found['turns']} turns, "
        f"{found['failures']} failed, {found['turns_per_s']:.1f} turns/s"
    )
    lines: list[RenderableType] = [
        Text(head, "bold red" if found["failures"] else "bold"),
        table,
        Text(f"TPOT p50 {tpot['p50']:.0f} ms, p99 {tpot['p99']:.0f} ms"),
        Text(f"hints: {outcomes}"),
    ]
    lines += [Text(f"{num} failed: {text}", "red") for text, num in found["troubles"].items()]
    return Group(*lines)
