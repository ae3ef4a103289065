"""What the tracker core asks its shell to do."""

from dataclasses import dataclass
from typing import Literal

from shared.effects import WakeAt
from shared.ids import FrontendId, WorkerId
from shared.wire.messages import AdvisoryKey, ExpectSession, HintsEnded, TurnsForeseen

Outcome = Literal[
    "submitted", "merged", "used", "late", "missed", "expired", "overtaken", "invalidated",
    "tracked", "tracked_used", "tracked_expired",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Expect:
    """Ask the scheduler for a reservation; pass the answer to `on_placed`."""

    message: ExpectSession


@dataclass(frozen=True, slots=True)
class Drop:
    """Ask the scheduler to release the reservation."""

    key: AdvisoryKey


@dataclass(frozen=True, slots=True)
class Count:
    """Count an advisory that arrived or ended. `missed` counts turns without one; `tracked...`
    count those that were not acted on, whose ends have no other count.
    """

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ObserveLead:
    """Record the time from an advisory to its turn."""

    seconds: float


@dataclass(frozen=True, slots=True)
class SendVerdicts:
    """Report to a frontend the outcome of advisories that it took."""

    frontend_id: FrontendId
    message: HintsEnded


@dataclass(frozen=True, slots=True)
class ForwardForeseen:
    """Send another shard of the tracker the foreseen turns of its sessions."""

    shard: int
    message: TurnsForeseen


@dataclass(frozen=True, slots=True)
class EndTrace:
    """End the span of a traced advisory.

    Attributes:
        trace: its span.
        worker_id: where its turn was expected; None: nowhere.
    """

    trace: str
    outcome: Outcome
    worker_id: WorkerId | None


Effect = Expect | Drop | Count | ObserveLead | SendVerdicts | ForwardForeseen | EndTrace | WakeAt
