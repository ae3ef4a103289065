"""Delays between the scheduler and the GPUs, as they are; what the scheduler reckons with is
`Delays` of the batching core.
"""

from dataclasses import dataclass, field
from random import Random


@dataclass(frozen=True, slots=True)
class Delay:
    """One message's time on its way, ns.

    Attributes:
        least_ns, spread_ns: uniform between `least_ns` and that plus `spread_ns`.
        median_ns, sigma: a lognormal part on top; none if `median_ns` is 0.
    """

    least_ns: int = 0
    spread_ns: int = 0
    median_ns: int = 0
    sigma: float = 0.0

    @property
    def is_constant(self) -> bool:
        return self.spread_ns == 0 and self.median_ns == 0

    def sample(self, random: Random) -> int:
        delay_ns = self.least_ns
        if self.spread_ns:
            delay_ns += random.randrange(self.spread_ns + 1)
        if self.median_ns:
            delay_ns += int(self.median_ns * random.lognormvariate(0.0, self.sigma))
        return delay_ns


@dataclass(frozen=True, slots=True)
class Network:
    """Both ways between the scheduler and a GPU.

    Attributes:
        dispatch: until a GPU knows of a batch.
        data_ns: to fetch the inputs of each of its jobs then.
        done: until the scheduler knows that a batch is over.
        doubled: probability that the scheduler receives a message twice.
    """

    dispatch: Delay = field(default_factory=Delay)
    data_ns: int = 0
    done: Delay = field(default_factory=Delay)
    doubled: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Whether a scheduler that knows the constants knows everything."""
        return self.dispatch.is_constant and self.done == Delay()
