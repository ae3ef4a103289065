"""What the job cores ask their shell to do."""

from dataclasses import dataclass
from typing import Literal

from services.scheduler.core.base.effects import ProbeWorker, PublishAdvice
from services.scheduler.core.partition.solving import SolvePartition
from shared.effects import WakeAt
from shared.ids import FrontendId, WorkerId
from shared.wire.messages import (
    BatchStart,
    JobsDropped,
    OneshotHold,
    RankBooked,
    RankGrant,
    RankOffer,
)

JobOutcome = Literal["done", "late", "dropped", "cancelled", "requeued"]


@dataclass(frozen=True, slots=True)
class SendBatch:
    """Send a batch to a worker."""

    worker_id: WorkerId
    start: BatchStart


@dataclass(frozen=True, slots=True)
class AnswerDropped:
    """Report to a frontend which of its jobs will not run."""

    frontend_id: FrontendId
    dropped: JobsDropped


@dataclass(frozen=True, slots=True)
class CountJobs:
    """Count jobs of a model by outcome."""

    model_id: str
    outcome: JobOutcome
    num_jobs: int


@dataclass(frozen=True, slots=True)
class Deposed:
    """A worker obeys a leader with this higher fencing token: stop acting."""

    fence: int


@dataclass(frozen=True, slots=True)
class SendHold:
    """Order which one-shot models a worker is to hold."""

    worker_id: WorkerId
    order: OneshotHold


@dataclass(frozen=True, slots=True)
class SendOffer:
    """Shard to rank process."""

    offer: RankOffer


@dataclass(frozen=True, slots=True)
class SendBooked:
    """Shard to rank process."""

    booked: RankBooked


@dataclass(frozen=True, slots=True)
class SendGrant:
    """Rank process to a shard."""

    shard: int
    grant: RankGrant


JobsEffect = (
    SendBatch
    | AnswerDropped
    | CountJobs
    | Deposed
    | ProbeWorker
    | PublishAdvice
    | SendHold
    | SolvePartition
    | SendOffer
    | SendBooked
    | SendGrant
    | WakeAt
)
