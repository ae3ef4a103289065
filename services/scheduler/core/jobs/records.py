"""The core's records of jobs, batches and devices."""

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import cast

from services.scheduler.core.batching.job import Job
from shared.ids import BatchId, FrontendId, JobId, ModelId, WorkerId
from shared.wire.messages import OneshotCard

MAX_SILENT_REPORTS = 2
MAX_RETIRED = 8


@dataclass(frozen=True, slots=True)
class ModelKey:
    """Key of jobs that can share a batch: a model with these weights, at one input size."""

    model_id: ModelId
    fingerprint: str
    variant: int

    def __str__(self) -> str:
        return f"{self.model_id}/{self.variant}" if self.variant else str(self.model_id)


@dataclass(slots=True, eq=False)
class Submitted:
    """An open job. `batch` is None while it waits."""

    job_id: JobId
    frontend_id: FrontendId
    job: Job
    batch: "Batch | None" = None


def records_of(jobs: Iterable[Job]) -> list[Submitted]:
    """The records of the batcher's jobs."""
    return [cast(Submitted, job.ref) for job in jobs]


@dataclass(slots=True, eq=False)
class Batch:
    """A batch that was sent.

    Attributes:
        ready_at_ns: earliest start: its inputs are there.
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
        loadable: others that it can load on order.
        ordered: what it was ordered to hold, and given batches of nothing else; None: no order.
        foreign: batches of an earlier scheduler; until they end it gets no other.
        retired: incarnations that ended: their late reports are void.
        reported_at_ns, interval_ns: when its last report arrived, and the time until the next.
        free_since_ns: when the end of its last batch became known here.
        is_added: it was added to the batcher.
        is_refusing: it refused a batch since its last report.
    """

    number: int
    worker_id: WorkerId
    incarnation: str
    seq: int = 0
    keys: frozenset[Hashable] = frozenset()
    loadable: frozenset[Hashable] = frozenset()
    ordered: frozenset[ModelId] | None = None
    cards: list[OneshotCard] = field(default_factory=list)
    batches: dict[BatchId, Batch] = field(default_factory=dict)
    foreign: set[BatchId] = field(default_factory=set)
    retired: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_RETIRED))
    reported_at_ns: int = 0
    interval_ns: int = 0
    free_since_ns: int = 0
    is_added: bool = False
    is_refusing: bool = False

    @property
    def is_serving(self) -> bool:
        """It is ready, and has models or can load some."""
        return bool(self.keys or self.loadable)
