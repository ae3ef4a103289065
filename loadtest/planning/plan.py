"""From a question to an answer: what is tried, and what comes of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from loadtest.planning.demand import Demand
from loadtest.planning.formula import Estimate, estimate
from loadtest.planning.machines import Machines
from loadtest.planning.search import GpuSearch
from loadtest.planning.share import users_of_part
from loadtest.planning.targets import Targets, missed
from loadtest.planning.trial import Seen, Trial
from shared.errors import InvalidRequest
from shared.profiles import LatencyProfile

RUNS_MAX = 10  # trials with hints
RUNS_WITHOUT_MAX = 5  # and without
AT_ONCE = 2  # whatever the machine has, so that the answer is the same on each

Run = Callable[[Sequence[Trial]], Sequence[Seen]]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Attributes:
    gpus_max: nothing above is tried.
    """

    profile: LatencyProfile
    demand: Demand
    targets: Targets
    machines: Machines
    gpus_max: int
    seconds: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A trial, and why it was not good enough; no reasons: it was."""

    seen: Seen
    missed: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Attributes:
    gpus: that are enough; None: not even the most that were tried.
    tried: by number of GPUs, ascending.
    short: the largest number that was tried and not enough; None: there is none.
    gpus_without_hints: that are enough if nothing is announced; None: not found.
    without_hints: trials without hints, ascending; none if the question has none.
    """

    question: Question
    estimate: Estimate
    gpus: int | None
    short: int | None
    tried: dict[int, Tried]
    gpus_without_hints: int | None = None
    without_hints: dict[int, Tried] = field(default_factory=dict)

    @property
    def best(self) -> Tried:
        """The trial that counts: the answer's, or of the most that were tried."""
        return self.tried[self.gpus if self.gpus is not None else max(self.tried)]


def make_plan(question: Question, run: Run, say: Say = lambda _: None) -> Plan:
    """Search.

    Args:
        run: what each trial shows, in order.
        say: called with what is tried.

    Raises:
        InvalidRequest: no number of these GPUs can be enough, or none that is allowed.
    """
    guess = estimate(question.profile, question.demand, question.targets, question.machines)
    if guess.gpus_least > question.gpus_max:
        raise InvalidRequest(
            f"--gpus-max {question.gpus_max}: answers alone are work for {guess.gpus_least} GPUs",
            "gpus_max",
        )
    say(f"a formula guesses {guess.gpus} GPUs")
    # One below what the formula calls least is tried, to see why it is not enough.
    search = GpuSearch(
        guess.gpus, max(guess.gpus_least - 2, 0), question.gpus_max, RUNS_MAX, AT_ONCE
    )
    tried = _search(search, question, run, say)
    plan = Plan(
        question=question,
        estimate=guess,
        gpus=search.enough,
        short=search.short if search.short in tried else None,
        tried=tried,
    )
    if plan.gpus is None or not question.demand.hinted:
        return plan
    unhinted = replace(question, demand=replace(question.demand, hinted=0.0))
    search = GpuSearch(
        plan.gpus, plan.gpus - 1, max(question.gpus_max, plan.gpus), RUNS_WITHOUT_MAX, AT_ONCE
    )
    say("the same without hints")
    without = _search(search, unhinted, run, say)
    return replace(plan, gpus_without_hints=search.enough, without_hints=without)


def _search(search: GpuSearch, question: Question, run: Run, say: Say) -> dict[int, Tried]:
    tried: dict[int, Tried] = {}
    while numbers := search.next_round():
        say(f"simulating {' and '.join(map(str, numbers))} GPUs")
        for seen in run([_trial(question, gpus) for gpus in numbers]):
            reasons = missed(seen.result, question.targets)
            tried[seen.gpus] = Tried(seen=seen, missed=reasons)
            search.on_verdict(seen.gpus, is_enough=not reasons)
    return dict(sorted(tried.items()))


def _trial(question: Question, gpus: int) -> Trial:
    return Trial(
        profile=question.profile,
        demand=question.demand,
        machines=question.machines,
        gpus=gpus,
        seconds=question.seconds,
        seed=question.seed,
        users_max=users_of_part(question.demand.context),
    )
