"""How many GPUs the cluster should have, from its bad rate and its idle time (deferred batch
scheduling, section 3.5).
"""

import math
from dataclasses import dataclass

SECOND_NS = 1_000_000_000

# Sums of rounded products must not push a whole number over the next one.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingLimits:
    """Durations in ns, bounds in GPUs, shares in [0, 1).

    Attributes:
        gpus_min: never advises fewer.
        gpus_max: never advises more.
        window_ns: readings this old weigh 1/e of new ones. Without a reading for this long there
            is no advice.
        warmup_ns: from the first reading to the first advice.
        bad_rate_max: share of requests that may be bad before GPUs are asked for.
        headroom: share of the GPUs' time that stays idle when GPUs are offered back. It must be
            enough for the cluster to stay below `bad_rate_max`, or the two kinds of advice take
            turns.
    """

    gpus_max: int
    gpus_min: int = 1
    window_ns: int = 30 * SECOND_NS
    warmup_ns: int = 10 * SECOND_NS
    bad_rate_max: float = 0.01
    headroom: float = 0.1


@dataclass(frozen=True, slots=True)
class ScalingAdvice:
    """Relative to the last reported number of GPUs; at most one of `add` and `remove` is not 0.

    Attributes:
        bad_rate: smoothed share of requests that were late or dropped.
        idle_share: smoothed share of the GPUs' time without work.
    """

    add: int
    remove: int
    bad_rate: float
    idle_share: float


class ScalingAdvisor:
    """Smooths readings and turns them into advice, which the cluster's operator may act on.

    With bad rate r over the threshold N GPUs need ``N r / (1 - r)`` more. With idle share f they
    can spare ``N f``, less the headroom h: ``N (f - h) / (1 - h)``, which leaves h of them idle.

    Both are exact for a scheduler whose goodput stays at its peak under overload and whose GPU time
    follows the load below it (the flat top). The same property gives the readings with another
    number of GPUs, so when the number changes the remembered readings are converted: otherwise
    GPUs that were just added would be requested again until the old bad rate is forgotten.
    """

    def __init__(self, num_gpus: int, limits: ScalingLimits) -> None:
        if not 0 <= limits.gpus_min <= limits.gpus_max:
            raise ValueError(f"no number of GPUs is in [{limits.gpus_min}, {limits.gpus_max}]")
        if not (0 <= limits.bad_rate_max < 1 and 0 <= limits.headroom < 1 and limits.window_ns > 0):
            raise ValueError("bad_rate_max and headroom are shares below 1, window_ns is positive")
        self._limits = limits
        self._num_gpus = num_gpus
        self._first_at_ns: int | None = None
        self._last_at_ns = 0
        # Exponentially forgotten sums over intervals.
        self._good = 0.0
        self._bad = 0.0
        self._busy_gpus = 0.0
        self._weight = 0.0

    def on_interval(
        self, num_good: int, num_bad: int, busy_fraction: float, num_gpus: int, now_ns: int
    ) -> None:
        """One reading; to be given at about equal intervals, a few in each `window_ns`.

        Args:
            num_good: requests done in time since the last reading.
            num_bad: requests late, dropped or refused for lack of GPUs since then.
            busy_fraction: share of the GPUs' time spent on batches; cut off at 0 and 1.
            num_gpus: GPUs that could be used in that time.
            now_ns: not before the last reading.

        Raises:
            ValueError: a count is negative.
        """
        if min(num_good, num_bad, num_gpus) < 0:
            raise ValueError(f"negative count in {num_good=}, {num_bad=}, {num_gpus=}")
        if num_gpus != self._num_gpus:
            self._convert(num_gpus)
        if self._first_at_ns is None:
            self._first_at_ns = self._last_at_ns = now_ns
        keep = math.exp(-max(0, now_ns - self._last_at_ns) / self._limits.window_ns)
        self._last_at_ns = now_ns
        self._good = self._good * keep + num_good
        self._bad = self._bad * keep + num_bad
        self._busy_gpus = self._busy_gpus * keep + min(max(busy_fraction, 0.0), 1.0) * num_gpus
        self._weight = self._weight * keep + 1.0

    def advice(self, now_ns: int) -> ScalingAdvice:
        """What to change now. Before the warm-up is over and while readings are missing, only
        violated bounds are corrected.
        """
        limits, n = self._limits, self._num_gpus
        bad_rate, idle = self._bad_rate(), self._idle_share()
        target = n
        if self._is_informed(now_ns):
            if bad_rate > limits.bad_rate_max:
                # Nothing good at all: no finite number follows.
                wanted = n * bad_rate / (1 - bad_rate) if bad_rate < 1 else math.inf
                room = max(0, limits.gpus_max - n)
                target = n + max(1, math.ceil(min(wanted, room) - _ROUNDING))
            elif idle > limits.headroom:
                spare = n * (idle - limits.headroom) / (1 - limits.headroom)
                target = n - math.floor(spare + _ROUNDING)
        target = min(max(target, limits.gpus_min), limits.gpus_max)
        return ScalingAdvice(max(0, target - n), max(0, n - target), bad_rate, idle)

    def _is_informed(self, now_ns: int) -> bool:
        if self._first_at_ns is None or now_ns - self._last_at_ns > self._limits.window_ns:
            return False
        return now_ns - self._first_at_ns >= self._limits.warmup_ns

    def _bad_rate(self) -> float:
        total = self._good + self._bad
        return self._bad / total if total > 0 else 0.0

    def _idle_share(self) -> float:
        busy_max = self._weight * self._num_gpus
        return 1 - min(1.0, self._busy_gpus / busy_max) if busy_max > 0 else 0.0

    def _convert(self, num_gpus: int) -> None:
        """Turn the sums into those of a cluster with another number of GPUs, same load."""
        # Above the threshold all GPUs count as always busy: idle hours before a surge must not
        # remove the GPUs that were just added.
        is_full = self._bad_rate() > self._limits.bad_rate_max
        used = self._num_gpus * self._weight if is_full else self._busy_gpus
        self._num_gpus = num_gpus
        total = self._good + self._bad
        if self._good == 0:
            # With nothing served there is no basis for a conversion: reset.
            self._bad = self._busy_gpus = self._weight = 0.0
            return
        needed = used * total / self._good
        served = min(1.0, num_gpus * self._weight / needed) if needed > 0 else 1.0
        self._good = total * served
        self._bad = total - self._good
        self._busy_gpus = needed * served
