"""`--watch`: turns to the near host as they come, as bars of their time to the first token, and
what happens on the two hosts just now.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from loadtest.bench.hints.cases import Seen

LABELS = {
    "resident": "history is here",
    "hinted": "hinted: fetched before",
    "late": "hinted a little late",
    "unhinted": "not hinted: fetched now",
    "recompute": "computed again",
}
BETWEEN = "a user reads and types"
REFRESHES_PER_S = 4.0

SeenBy = Mapping[str, Sequence[Seen]]


@dataclass(frozen=True, slots=True)
class Watch:
    """Attributes:
    on_seen: to be called whenever there is another turn to show.
    on_step: with what happens now.
    """

    on_seen: Callable[[SeenBy], None]
    on_step: Callable[[str], None]


def chart(seen: SeenBy, title: str) -> Table:
    """Each case's last turn as a bar, all on one scale that begins at 0."""
    table = Table(title=title, title_justify="left", expand=True, box=None, padding=(0, 1))
    table.add_column("a session's next turn", no_wrap=True)
    table.add_column("time to its first token", ratio=1)
    for name in ("ms", "not computed", "turns"):
        table.add_column(name, justify="right", no_wrap=True)
    longest_ms = max((each[-1].ttft_ms for each in seen.values()), default=1.0)
    for case, words in LABELS.items():
        if turns := seen.get(case, ()):
            last = turns[-1]
            bar = Bar(longest_ms, 0, last.ttft_ms)
            ms, cached = f"{last.ttft_ms:.0f}", f"{last.cached_tokens:,}"
            table.add_row(words, bar, ms, cached, str(len(turns)))
        else:
            table.add_row(words, "", "", "", "")
    return table


def verdict(seen: SeenBy) -> str:
    """What a hint was worth in the last turns; empty before there is one of each kind.

    >>> verdict({})
    ''
    """
    if not {"hinted", "unhinted", "recompute"} <= seen.keys():
        return ""
    hinted, unhinted, computed = (
        seen[case][-1].ttft_ms for case in ("hinted", "unhinted", "recompute")
    )
    return (
        f"With a hint the first token came {unhinted / hinted:.1f} times sooner than without one,"
        f" and {computed / hinted:.1f} times sooner than if its history had to be computed again."
    )


def screen(seen: SeenBy, title: str, step: str) -> RenderableType:
    """All that is shown."""
    return Group(chart(seen, title), "", Text(f"now: {step}", "dim"), Text(verdict(seen), "green"))


@contextmanager
def watching(title: str) -> Iterator[Watch]:
    """Show it, as long as the body lasts."""
    seen: SeenBy = {}
    step = BETWEEN

    def show() -> None:
        live.update(screen(seen, title, step))

    def on_seen(so_far: SeenBy) -> None:
        nonlocal seen
        seen = so_far
        show()

    def on_step(now: str) -> None:
        nonlocal step
        step = now
        show()

    console = Console(stderr=True)
    with Live(
        screen(seen, title, step), console=console, refresh_per_second=REFRESHES_PER_S
    ) as live:
        yield Watch(on_seen, on_step)
