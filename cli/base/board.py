"""What every process of a start does, one line each: redrawn on a terminal, elsewhere a line for
each change and a few after a silence.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

REPEAT_S = 4.0
REPEATED_MAX = 4  # lines after a silence
STARTING = "starting"
READY = "ready"


@dataclass(frozen=True, slots=True)
class Step:
    """What a process does.

    Attributes:
        name: of the process.
        doing: in words; `STARTING` until more is known, `READY` in the end.
        count: how far it is; empty: not known.
        is_waiting: for others alone, of which a silence is broken by their own lines.
    """

    name: str
    doing: str = STARTING
    count: str = ""
    is_waiting: bool = False


class Board:
    """Shows steps with the seconds since each began, and those that are ready with the seconds from
    their start. No thread: call `tick` several times a second.

    Args:
        console: to print on.
        now: a clock, seconds.
    """

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._now = now
        self._steps: dict[str, Step] = {}
        self._met_at: dict[str, float] = {}  # by name: first seen
        self._since: dict[str, float] = {}  # by name: does what it does
        self._said_at = now()
        self._live: Live | None = None

    def show(self, steps: Sequence[Step]) -> None:
        """These are under way, or ready."""
        now = self._now()
        for step in steps:
            before = self._steps.get(step.name)
            self._met_at.setdefault(step.name, now)
            if before is None or before.doing != step.doing:
                self._since[step.name] = self._met_at[step.name] if step.doing == READY else now
                if step.doing != STARTING and not self._console.is_terminal:
                    self._say(step)
        self._steps = {step.name: step for step in steps}
        self.tick()

    def tick(self) -> None:
        """Let time pass."""
        if self._console.is_terminal:
            self._draw()
        elif self._now() - self._said_at >= REPEAT_S:
            left = [step for step in self._steps.values() if step.doing != READY]
            left = [step for step in left if not step.is_waiting] or left
            for step in left[:REPEATED_MAX]:
                self._say(step)
            if len(left) > REPEATED_MAX:
                self.line(f"and {len(left) - REPEATED_MAX} more")

    def line(self, text: str) -> None:
        """One line that stays."""
        self._said_at = self._now()
        self._console.print(f"[dim]symphony:[/dim] {escape(text)}")

    def close(self) -> None:
        """Nothing is under way any more."""
        self._steps.clear()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _say(self, step: Step) -> None:
        count = f", {step.count}" if step.count else ""
        self.line(f"{step.name}: {step.doing}{count} ({self._seconds(step)} s)")

    def _draw(self) -> None:
        if not self._steps:
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        table = Table.grid(padding=(0, 2))
        for step in self._steps.values():
            doing = Text(step.doing, "green" if step.doing == READY else "")
            seconds = f"{self._seconds(step)} s"
            table.add_row(f"[dim]symphony:[/dim] {step.name}", doing, step.count, seconds)
        self._live.update(table, refresh=True)

    def _seconds(self, step: Step) -> int:
        return int(self._now() - self._since[step.name])
