"""What the core knows of jobs, batches and devices."""

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import cast

from services.scheduler.core.batching.job import Job
from shared.ids import BatchId, FrontendId, JobId, ModelId, WorkerId
from shared.messages import OneshotCard

MAX_SILENT_REPORTS = 2
MAX_RETIRED = 8


@dataclass(frozen=True, slots=True)
class ModelKey:
    """What is batched together: a model with these weights, at one input size."""

    model_id: ModelId
    fingerprint: str
    variant: int

    def __str__(self) -> str:
        return f"{self.model_id}/{self.variant}" if self.variant else str(self.model_id)


@dataclass(slots=True, eq=False)
class Submitted:
    """A job that is neither done nor dropped. `batch` is None while it waits."""

    job_id: JobId
    frontend_id: FrontendId
    job: Job
    batch: "Batch | None" = None


def records_of(jobs: Iterable[Job]) -> list[Submitted]:
    """What the batcher's jobs stand for."""
    return [cast(Submitted, job.ref) for job in jobs]


@dataclass(slots=True, eq=False)
class Batch:
    """A batch that was sent.

    Attributes:
        ready_at_ns: when it can start at the earliest, its inputs being there.
        num_reports_without: reports of its worker that lack it.
    """

    batch_id: BatchId
    number: int
    device: "Device"
    key: ModelKey
    jobs: list[Submitted]
    ready_at_ns: int
    end_at_ns: int
    num_reports_without: int = 0


@dataclass(slots=True, eq=False)
class Device:
    """A worker that serves one-shot models: one GPU to the batcher, known there by `number`.

    Attributes:
        keys: models that it can be given batches of; empty while it is not ready.
        foreign: batches that an earlier scheduler sent; until they are over it gets no other.
        retired: incarnations that are over: what is heard of them comes late.
        reported_at_ns, interval_ns: when its last report came, and how long until the next.
        free_since_ns: end of its last batch, as heard here.
        is_added: the batcher has it.
        is_refusing: it refused a batch since its last report.
    """

    number: int
    worker_id: WorkerId
    incarnation: str
    seq: int = 0
    keys: frozenset[Hashable] = frozenset()
    cards: list[OneshotCard] = field(default_factory=list)
    batches: dict[BatchId, Batch] = field(default_factory=dict)
    foreign: set[BatchId] = field(default_factory=set)
    retired: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_RETIRED))
    reported_at_ns: int = 0
    interval_ns: int = 0
    free_since_ns: int = 0
    is_added: bool = False
    is_refusing: bool = False
