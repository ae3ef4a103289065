"""How busy each one-shot model keeps the workers: observed arrivals times measured time a job."""

import math
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(slots=True)
class _Sums:
    """Exponentially forgotten; one job of the profile's time stands at the start of what ran."""

    run_ns: float
    num_ran: float = 1.0
    num_jobs: float = 0.0
    num_new: int = 0  # since the interval began


class Loads:
    """Load of each model, in workers: jobs a second times a worker's seconds a job.

    Args:
        forget_ns: what is this old weighs 1/e of what is new.
    """

    def __init__(self, forget_ns: int) -> None:
        self._forget_ns = forget_ns
        self._sums: dict[Hashable, _Sums] = {}
        self._time_ns = 0.0
        self._last_at_ns: int | None = None

    def add(self, model: Hashable, job_ns: int) -> None:
        """Add a model. Until its batches have run, a job counts as so long."""
        self._sums.setdefault(model, _Sums(float(job_ns)))

    def remove(self, model: Hashable) -> None:
        """Remove a model."""
        self._sums.pop(model, None)

    def on_jobs(self, model: Hashable, num_jobs: int) -> None:
        """Jobs arrived; those of unknown models are not counted."""
        sums = self._sums.get(model)
        if sums is not None:
            sums.num_new += num_jobs

    def on_ran(self, model: Hashable, num_jobs: int, run_ns: int) -> None:
        """A batch ran."""
        sums = self._sums.get(model)
        if sums is not None:
            sums.num_ran += num_jobs
            sums.run_ns += run_ns

    def end_interval(self, now_ns: int) -> None:
        """What arrived since the last call did so in the time since then."""
        passed_ns = 0 if self._last_at_ns is None else max(now_ns - self._last_at_ns, 0)
        self._last_at_ns = now_ns
        keep = math.exp(-passed_ns / self._forget_ns)
        self._time_ns = self._time_ns * keep + passed_ns
        for sums in self._sums.values():
            sums.num_jobs = sums.num_jobs * keep + sums.num_new
            # The quotient is what counts: one job's weight always remains.
            weight = keep if sums.num_ran * keep >= 1 else 1.0
            sums.num_ran, sums.run_ns = sums.num_ran * weight, sums.run_ns * weight
            sums.num_new = 0

    def load(self, model: Hashable) -> float:
        """Workers that the model keeps busy; 0 while that is unknown."""
        sums = self._sums.get(model)
        if sums is None or self._time_ns <= 0:
            return 0.0
        return sums.num_jobs / self._time_ns * sums.run_ns / sums.num_ran
