"""Goodput: the highest offered rate at which every model keeps its target (section 2.1)."""

from dataclasses import dataclass

from loadtest.simulator.bounds import capacity_rps, staggered_rps
from loadtest.simulator.results import Result
from loadtest.simulator.scenario import BAD_RATE_MAX, Scenario

NOTHING = 1e-3  # of the capacity: less than this is no goodput


@dataclass(frozen=True, slots=True)
class Goodput:
    """The outcome of a search.

    Attributes:
        rps: the highest rate found that was served.
        result: of the run at that rate; None if there is none.
        num_jobs: simulated in all runs.
    """

    rps: float
    result: Result | None
    num_jobs: int


def find_goodput(scenario: Scenario, tolerance: float = 0.004) -> Goodput:
    """Search the rate by halving, until it is known to this share of itself.

    A rate is served if at most `BAD_RATE_MAX` of every model's jobs are late or dropped. Runs use
    the same random numbers, so that they differ by the rate only.
    """
    low, best, num_jobs = 0.0, None, 0
    high = capacity_rps(scenario.models, scenario.shares, scenario.num_gpus)
    middle = 0.9 * min(staggered_rps(scenario.models, scenario.shares, scenario.num_gpus), high)
    least = NOTHING * high
    while high - low > tolerance * high and high > least:
        result = scenario.run(middle, gives_up=True)
        num_jobs += result.num_jobs
        is_served = result.worst_bad_rate <= BAD_RATE_MAX and not result.was_given_up
        if is_served and result.num_good:
            low, best = middle, result
        else:
            high = middle
        middle = (low + high) / 2
    return Goodput(low, best, num_jobs)
