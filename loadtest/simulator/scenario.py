"""What is simulated: models, load, cluster and policy in one value, which can go to a process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loadtest.policies import Policy, make_batcher
from loadtest.simulator.arrivals import (
    Arrivals,
    renewal,
)
from loadtest.simulator.checks import check
from loadtest.simulator.log import Record
from loadtest.simulator.models import SimModel
from loadtest.simulator.results import Result, summarise
from loadtest.simulator.simulation import Simulation
from services.scheduler.core.batching.job import Delays
from services.scheduler.policies import DEFAULT_POLICY

BAD_RATE_MAX = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One simulated cluster; `run` gives it a load.

    Attributes:
        weights: each model's share of the load; equal if empty.
        gamma: shape of the gaps between arrivals; 1 is Poisson.
        seconds: of arrivals; `cold_s` of them at the start are not counted.
        delays: of messages to GPUs, which the scheduler reckons with.
        make: makes the core instead of `policy`, for one that has no name.
    """

    models: tuple[SimModel, ...]
    num_gpus: int
    weights: tuple[float, ...] = ()
    policy: str = DEFAULT_POLICY
    gamma: float = 1.0
    seconds: float = 20.0
    cold_s: float = 1.0
    seed: int = 1
    delays: Delays = field(default_factory=Delays)
    make: Callable[[Delays], Policy] | None = None

    @property
    def shares(self) -> tuple[float, ...]:
        """Each model's share of the load; they add up to 1."""
        weights = self.weights or tuple(1.0 for _ in self.models)
        return tuple(weight / sum(weights) for weight in weights)

    def changed(self, **changes: Any) -> "Scenario":
        """The same but for some attributes."""
        return replace(self, **changes)

    def arrivals(self, rps: float) -> Arrivals:
        """Jobs at an offered load of so many a second."""
        rates = [rps * share for share in self.shares]
        return renewal(rates, self.seconds, self.seed, self.gamma)

    def run(self, rps: float, *, gives_up: bool = False) -> Result:
        """Simulate an offered load.

        Args:
            gives_up: stop as soon as some model is certain to lose more than `BAD_RATE_MAX`.

        Raises:
            Violation: an invariant was broken.
        """
        return self.record(self.arrivals(rps), gives_up=gives_up)[0]

    def record(self, arrivals: Arrivals, *, gives_up: bool = False) -> tuple[Result, Record]:
        """Simulate these arrivals; every batch beside the result."""
        cold_ns = int(self.cold_s * 1e9)
        lost_max = _lost_max(arrivals, cold_ns, len(self.models)) if gives_up else None
        simulation = Simulation(
            self.make(self.delays) if self.make else make_batcher(self.policy, self.delays),
            self.models,
            arrivals,
            self.num_gpus,
            self.delays,
            lost_max=lost_max,
            counted_from_ns=cold_ns,
        )
        record = simulation.run().frozen()
        check(
            record,
            seed=self.seed,
            is_whole=not simulation.was_given_up,
        )
        result = summarise(record, cold_ns, was_given_up=simulation.was_given_up)
        return result, record


def _lost_max(arrivals: Arrivals, cold_ns: int, num_models: int) -> Sequence[float]:
    counted = arrivals.model[arrivals.at_ns >= cold_ns]
    counts = [int((counted == index).sum()) for index in range(num_models)]
    return [BAD_RATE_MAX * count for count in counts]
