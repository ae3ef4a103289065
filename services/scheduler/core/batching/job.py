"""What is scheduled: a job, its model, and the delays of dispatching it to a GPU."""

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

NEVER_NS = 1 << 62


class Job:
    """One request to a one-shot model.

    Attributes:
        model: key of its model.
        deadline_ns: instant by which its result must exist.
        arrived_at_ns: instant at which the scheduler received it.
        ref: an object of the caller; not used here.
    """

    __slots__ = ("arrived_at_ns", "deadline_ns", "model", "ref")

    def __init__(
        self, model: Hashable, deadline_ns: int, arrived_at_ns: int, ref: object = None
    ) -> None:
        self.model = model
        self.deadline_ns = deadline_ns
        self.arrived_at_ns = arrived_at_ns
        self.ref = ref

    def __repr__(self) -> str:
        return f"Job({self.model!r}, arrived {self.arrived_at_ns}, deadline {self.deadline_ns})"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model as the scheduler sees it.

    Attributes:
        key: any hashable name.
        batch_ns: time of a batch by its size, ns: ``batch_ns[0] == 0``, never decreasing, one entry
            more than the largest batch.
        slo_ns: usual time from arrival to deadline; policies that plan ahead count with it.
        rate_rps: measured jobs per second; infinite until it is measured.
        num_models: models, this one included, that recently had jobs and use the same GPUs.
    """

    key: Hashable
    batch_ns: Sequence[int]
    slo_ns: int
    rate_rps: float = inf
    num_models: int = 1

    def __post_init__(self) -> None:
        table = self.batch_ns
        assert len(table) >= 2 and table[0] == 0, "batch_ns starts with sizes 0 and 1"
        assert all(a <= b for a, b in pairwise(table)), "batch_ns decreases"

    @property
    def size_max(self) -> int:
        return len(self.batch_ns) - 1

    def largest(self, budget_ns: int) -> int:
        """The largest batch that runs within `budget_ns`; 0 if none does.

        >>> ModelSpec("m", [0, 6, 7, 8], slo_ns=12).largest(7)
        2
        """
        return max(bisect_right(self.batch_ns, budget_ns) - 1, 0)


@dataclass(frozen=True, slots=True)
class Delays:
    """Time from a dispatch until the GPU has its inputs: ``ctrl + data * size``.

    `slack_ns` is how late a timer may fire: no batch waits until less than this before its latest
    start, however little the next job would cost.

    Source: deferred batch scheduling, appendix D; the slack is ours.
    """

    ctrl_ns: int = 0
    data_ns: int = 0
    slack_ns: int = 0

    def of(self, size: int) -> int:
        """Delay of a batch of `size`, ns."""
        return self.ctrl_ns + self.data_ns * size


def num_due_by(jobs: Sequence[Job], deadline_ns: int) -> int:
    """How many of these jobs, which are in order of deadlines, are due no later than this."""
    if not jobs or jobs[-1].deadline_ns <= deadline_ns:
        return len(jobs)
    return bisect_right(jobs, deadline_ns, key=deadline_of)


def deadline_of(job: Job) -> int:
    return job.deadline_ns
