"""What a figure is, and what it gets to work with."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from loadtest.policies import BASELINES
from loadtest.simulator.bounds import staggered_rps
from loadtest.simulator.results import Result
from loadtest.simulator.scenario import Scenario
from loadtest.simulator.search import find_goodput
from services.scheduler.policies import DEFAULT_POLICY

Results = dict[str, Any]
Level = Literal["tiny", "quick", "full"]
Item = TypeVar("Item")
Value = TypeVar("Value")

OURS = (DEFAULT_POLICY, "deferred")
COMPARED = OURS + tuple(BASELINES)

COLOURS = {
    "steady": "#c0392b",
    "deferred": "#e08e45",
    "clockwork": "#5d6d7e",
    "nexus": "#2e86c1",
    "shepherd": "#239b56",
    "eager": "#7d3c98",
}


class Row(NamedTuple):
    """A line of the table.

    Attributes:
        what: was measured.
        paper: its number, if its text gives one.
        how: ours was come to, where that is not the same for a whole page.
        shares: of history by where it came from, where KV is what is measured.
        mark: whether the paper's number is met, if that can be said.
    """

    what: str
    paper: str
    ours: str
    how: str = ""
    shares: str = ""
    mark: str = ""

    def as_dict(self) -> dict[str, str]:
        """Its fields, but for those of the last three that are empty."""
        always = {"what", "paper", "ours"}
        return {name: text for name, text in self._asdict().items() if text or name in always}


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to spend on a measurement.

    Attributes:
        num_jobs: of a simulated run, about.
        tolerance: of a goodput search.
    """

    level: Level
    num_jobs: int
    tolerance: float

    def pick(self, tiny: Value, quick: Value, full: Value) -> Value:
        """What is right for the level."""
        return {"tiny": tiny, "quick": quick, "full": full}[self.level]

    def lighter(self, share: float) -> "Effort":
        """With so much of the jobs, for a figure of many points."""
        return replace(self, num_jobs=max(int(share * self.num_jobs), min(self.num_jobs, 10_000)))

    def sized(self, scenario: Scenario, rps: float | None = None) -> Scenario:
        """The scenario, long enough for `num_jobs` at its bound (or at `rps`), and for the cold
        start and some targets beside."""
        rate = rps or staggered_rps(scenario.models, scenario.shares, scenario.num_gpus)
        longest_s = max(model.slo_ms for model in scenario.models) / 1e3
        cold_s = min(max(5 * longest_s, 0.2), 1.0)
        # In fewer targets than these a queue can hide overload.
        least_s = self.pick(5, 10, 30) * longest_s
        counted_s = min(max(self.num_jobs / rate, least_s), 60.0)
        return scenario.changed(seconds=cold_s + counted_s, cold_s=cold_s)


TINY = Effort("tiny", 600, 0.2)
QUICK = Effort("quick", 10_000, 0.02)
FULL = Effort("full", 120_000, 0.005)


class Work(Protocol):
    """Does the parts of a measurement, perhaps at the same time."""

    def map(self, function: Callable[[Item], Value], items: Iterable[Item]) -> list[Value]:
        """The function's value for each item, in order. Unless the set is timed, both must go to
        another process."""
        ...


class Alone:
    """One after the other, here; reports its progress.

    Args:
        on_progress: as of `Shared`.
    """

    def __init__(self, on_progress: Callable[[int, int], None] = lambda *_: None) -> None:
        self._on_progress = on_progress

    def map(self, function: Callable[[Item], Value], items: Iterable[Item]) -> list[Value]:
        parts = list(items)
        self._on_progress(len(parts), 0)
        values = []
        for part in parts:
            values.append(function(part))
            self._on_progress(0, 1)
        return values


class Shared:
    """In a pool of processes; reports its progress.

    Args:
        on_progress: called with the number of parts that were added, and that were done.
    """

    def __init__(self, pool: ProcessPoolExecutor, on_progress: Callable[[int, int], None]) -> None:
        self._pool = pool
        self._on_progress = on_progress

    def map(self, function: Callable[[Item], Value], items: Iterable[Item]) -> list[Value]:
        parts = list(items)
        self._on_progress(len(parts), 0)
        values = []
        for value in self._pool.map(function, parts):
            values.append(value)
            self._on_progress(0, 1)
        return values


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure or table of the paper.

    Attributes:
        key: as in ``--only``; also in the file's name.
        measure: numbers, as JSON can hold them.
        rows: the table's lines.
        about: what is measured or simulated, and where it differs from the paper.
    """

    key: str
    title: str
    measure: Callable[[Work, Effort], Results]
    draw: Callable[[Results], Drawing]
    rows: Callable[[Results], list[Row]]
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSet:
    """The figures of one paper.

    Attributes:
        name: as in ``bench figures NAME``; also in the files' names.
        title: of the page.
        intro: of the page, behind the line that says what wrote it.
        figures: in order.
        is_timed: what is measured is time on this machine, so that nothing may run beside it.
    """

    name: str
    title: str
    intro: str
    figures: tuple[Figure, ...]
    is_timed: bool


class Search(NamedTuple):
    """A goodput search, as a part of some work."""

    scenario: Scenario
    tolerance: float


def search(part: Search) -> Results:
    """The goodput and the run at it."""
    found = find_goodput(part.scenario, part.tolerance)
    if found.result is None:
        return {"rps": 0.0}
    return {"rps": round(found.rps, 1), **figures_of(found.result)}


def figures_of(result: Result) -> Results:
    """A run's main numbers."""
    return {
        "good_rps": round(result.good_rps, 1),
        "bad_rate": round(result.bad_rate, 5),
        "worst_bad_rate": round(result.worst_bad_rate, 5),
        "batch_p50": result.batch_p50,
        "gpu_busy": round(result.gpu_busy, 4),
    }


def searches(work: Work, effort: Effort, scenarios: Sequence[Scenario]) -> list[Results]:
    """The goodput of each scenario."""
    return work.map(
        search, [Search(effort.sized(scenario), effort.tolerance) for scenario in scenarios]
    )


def new_drawing(
    num_columns: int = 2, num_rows: int = 1, height: float = 3.2, width: float = 4.4
) -> Drawing:
    """An empty sheet of the usual size, small enough as a file."""
    return Drawing(figsize=(width * num_columns, height * num_rows), dpi=80, layout="constrained")


def label(axes: Axes, title: str, x: str, y: str) -> None:
    """Name a plot and its axes."""
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)


def marked(*, is_met: bool) -> str:
    """Of a row: whether the paper's number is met."""
    return "met" if is_met else "**missed**"


def colour(policy: str) -> str:
    """The policy's own."""
    return COLOURS.get(policy, "#34495e")


def ratio(value: float, other: float) -> float:
    """``value / other``; 0 if there is nothing to compare with."""
    return value / other if other else 0.0
