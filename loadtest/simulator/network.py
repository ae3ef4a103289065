"""Delays between the scheduler and the GPUs, as they are; what the scheduler reckons with is
`Delays` of the batching core.
"""

import math
from dataclasses import dataclass, field
from random import Random

from shared.errors import InvalidRequest

# Standard normal deviate of the 99.99th percentile: what a scheduler takes as the network's bound
# (deferred batch scheduling, section 5.6).
TAIL_DEVIATE = 3.719


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


def jittered(bound_ns: int, jitter: str) -> Delay:
    """A delay of which `bound_ns` is the high percentile that a scheduler reckons with.

    Args:
        jitter: ``none`` is always the bound, ``uniform`` anything up to it, ``lognormal:SIGMA`` has
            it as the 99.99th percentile.

    Raises:
        InvalidRequest: `jitter` is none of these.
    """
    if jitter == "none":
        return Delay(least_ns=bound_ns)
    if jitter == "uniform":
        return Delay(spread_ns=bound_ns)
    kind, _, argument = jitter.partition(":")
    try:
        sigma = float(argument)
    except ValueError:
        sigma = -1.0
    if kind != "lognormal" or not 0 < sigma < 10:
        raise InvalidRequest(
            f"--jitter {jitter!r}: use none, uniform or lognormal:SIGMA, as lognormal:0.5"
        )
    return Delay(median_ns=int(bound_ns / math.exp(TAIL_DEVIATE * sigma)), sigma=sigma)


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
