"""Counters from which scaling advice is computed."""

from services.scheduler.core.base.effects import PublishAdvice
from services.scheduler.core.batching.scaling import ScalingAdvisor, ScalingLimits
from shared.wire.messages import AutoscaleAdvice

INTERVAL_NS = 1_000_000_000


class Meter:
    """Good and bad jobs and the devices' busy time, turned into advice once an interval."""

    def __init__(self, limits: ScalingLimits) -> None:
        self._advisor = ScalingAdvisor(0, limits)
        self._num_good = 0
        self._num_bad = 0
        self._busy_ns = 0

    def count(self, num_good: int, num_bad: int) -> None:
        """Count jobs that were done in time, and jobs that were late or dropped."""
        self._num_good += num_good
        self._num_bad += num_bad

    def ran(self, run_ns: int) -> None:
        """Count a device's busy time."""
        self._busy_ns += run_ns

    def take_counts(self) -> tuple[int, int]:
        """Good and bad jobs since the last call, for the rank process's meter."""
        counts = self._num_good, self._num_bad
        self._num_good = self._num_bad = 0
        return counts

    def advise(self, num_devices: int, now_ns: int, *, is_needed: bool) -> PublishAdvice:
        """The end of an interval.

        Args:
            is_needed: whether there are one-shot models. Without any and without jobs for them no
                worker is asked for, not even the first.
        """
        is_needed = is_needed or self._num_good + self._num_bad > 0
        busy_share = self._busy_ns / (INTERVAL_NS * num_devices) if num_devices else 0.0
        self._advisor.on_interval(self._num_good, self._num_bad, busy_share, num_devices, now_ns)
        self._num_good = self._num_bad = self._busy_ns = 0
        advice = self._advisor.advice(now_ns)
        return PublishAdvice(
            AutoscaleAdvice(
                num_workers=num_devices,
                add=advice.add if is_needed else 0,
                remove=advice.remove,
                bad_rate=advice.bad_rate,
                idle_share=advice.idle_share,
            )
        )
