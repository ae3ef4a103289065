"""`--watch`: turns to the near host as they come, as bars of their time to the first token."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.bar import Bar
from rich.console import Console
from rich.live import Live
from rich.table import Table

from loadtest.bench.hints.cases import Seen

TOLD = {
    "resident": "its history is here",
    "hinted": "a hint came before it, and fetched its history",
    "late": "a hint came before it, half a transfer early",
    "unhinted": "its history is fetched now",
    "recompute": "its history is computed again",
}


def chart(seen: Mapping[str, Sequence[Seen]], title: str) -> Table:
    """Each case's last turn as a bar, all on one scale that begins at 0."""
    table = Table(title=title, title_justify="left", expand=True, box=None, padding=(0, 1))
    table.add_column("the next turn of a session")
    table.add_column("time to its first token", ratio=1)
    for name in ("ms", "tokens not computed"):
        table.add_column(name, justify="right")
    longest_ms = max((each[-1].ttft_ms for each in seen.values()), default=1.0)
    for case, words in TOLD.items():
        if last := seen.get(case, ())[-1:]:
            ms = last[0].ttft_ms
            table.add_row(words, Bar(longest_ms, 0, ms), f"{ms:.0f}", str(last[0].cached_tokens))
        else:
            table.add_row(words, "", "", "")
    return table


@contextmanager
def watching(title: str) -> Iterator[Callable[[Mapping[str, Sequence[Seen]]], None]]:
    """Call what this gives whenever there is another turn to show."""
    with Live(chart({}, title), console=Console(stderr=True), auto_refresh=False) as live:
        yield lambda seen: live.update(chart(seen, title), refresh=True)
