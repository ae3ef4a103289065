"""Which jobs of a queue make the batch that starts at a given instant.

The queue is in order of deadlines, so its head's deadline is the batch's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from services.scheduler.core.batching.job import NEVER_NS, Job, ModelSpec

QUEUE_RESERVE = 1.25  # so that no GPU finds a short queue because of the limit


class Gathering(Protocol):
    """Chooses the batch."""

    def gather(
        self, spec: ModelSpec, jobs: Sequence[Job], start_at_ns: int, room: float
    ) -> tuple[int, int]:
        """How many jobs to drop at the head, and how many to run, starting at `start_at_ns`.

        `room` is how many jobs the model may lose now and still serve the promised share; infinite
        if it has lost too many already.
        """
        ...

    def queue_max(self, spec: ModelSpec, served_rps: float) -> int:
        """How many jobs may wait under overload; `served_rps` is the recent rate of served jobs."""
        ...


@dataclass(frozen=True, slots=True)
class PrefixGathering:
    """From the head on, as many as end by the head's deadline. Only jobs that could not even run
    alone are left out. Source: deferred batch scheduling, section 3.2.
    """

    def gather(
        self, spec: ModelSpec, jobs: Sequence[Job], start_at_ns: int, room: float
    ) -> tuple[int, int]:
        num_late = count_late(spec, jobs, start_at_ns)
        if num_late == len(jobs):
            return num_late, 0
        size = spec.largest(jobs[num_late].deadline_ns - start_at_ns)
        return num_late, min(size, len(jobs) - num_late)

    def queue_max(self, spec: ModelSpec, served_rps: float) -> int:
        return NEVER_NS


@dataclass(frozen=True, slots=True)
class TargetGathering:
    """Leaves heads out, too, whose deadlines would keep the batch below `target` although enough
    jobs wait. Source: section 3.2, as in Nexus.
    """

    target: int

    def gather(
        self, spec: ModelSpec, jobs: Sequence[Job], start_at_ns: int, room: float
    ) -> tuple[int, int]:
        num_left_out = count_late(spec, jobs, start_at_ns)
        while num_left_out < len(jobs):
            fits = spec.largest(jobs[num_left_out].deadline_ns - start_at_ns)
            wanted = min(self.target, len(jobs) - num_left_out, spec.size_max)
            if fits >= wanted:
                return num_left_out, min(fits, len(jobs) - num_left_out)
            num_left_out += 1
        return num_left_out, 0

    def queue_max(self, spec: ModelSpec, served_rps: float) -> int:
        return NEVER_NS


@dataclass(frozen=True, slots=True)
class AllowanceGathering:
    """Spends the 1% of jobs that a 99th percentile may lose where that gains most.

    A batch shorter than `enough` wastes capacity, and the jobs that it leaves behind are older, so
    the next batch is shorter still. Heads are dropped to prevent that, but only as many as there is
    room to lose; where that does not help, the batch is a prefix. When too many are lost already,
    every batch is made `full`, which serves the most jobs (the flat top of section 3.5).
    """

    enough: int
    full: int
    most: int = 0  # jobs that may always wait

    def gather(
        self, spec: ModelSpec, jobs: Sequence[Job], start_at_ns: int, room: float
    ) -> tuple[int, int]:
        first = count_late(spec, jobs, start_at_ns)
        if first == len(jobs):
            return first, 0
        is_broken = room == inf
        wanted = self.full if is_broken else self.enough
        last = len(jobs) - 1 if is_broken else min(len(jobs) - 1, first + int(room))
        for num_left_out in range(first, last + 1):
            num_left = len(jobs) - num_left_out
            size = min(spec.largest(jobs[num_left_out].deadline_ns - start_at_ns), num_left)
            if size >= min(wanted, num_left):
                return num_left_out, size
        size = spec.largest(jobs[first].deadline_ns - start_at_ns)
        return first, min(size, len(jobs) - first)

    def queue_max(self, spec: ModelSpec, served_rps: float) -> int:
        """About as many as are served until the last of them must start in a full batch: further
        jobs are refused at once, not when their deadline is near.
        """
        time_ns = max(spec.slo_ns - spec.batch_ns[self.full], 0)
        return max(int(QUEUE_RESERVE * served_rps * time_ns / 1e9), self.full, self.most)


def count_late(spec: ModelSpec, jobs: Sequence[Job], start_at_ns: int) -> int:
    """How many jobs at the head could not end in time even alone."""
    due_ns = start_at_ns + spec.batch_ns[1]
    num_late = 0
    for job in jobs:
        if job.deadline_ns >= due_ns:
            break
        num_late += 1
    return num_late
