"""What the tracker core asks its shell to do."""

from dataclasses import dataclass
from typing import Literal

from shared.effects import WakeAt
from shared.ids import FrontendId, WorkerId
from shared.messages import AdvisoryKey, ExpectSession, HintsEnded, TurnsForeseen

Outcome = Literal[
    "submitted", "merged", "used", "late", "missed", "expired", "overtaken", "invalidated",
    "tracked", "tracked_used", "tracked_expired",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Expect:
    """Ask the scheduler to keep a place; tell the answer to `on_placed`."""

    message: ExpectSession


@dataclass(frozen=True, slots=True)
class Drop:
    """Tell the scheduler that the place is not needed any more."""

    key: AdvisoryKey


@dataclass(frozen=True, slots=True)
class Count:
    """An advisory came or ended; `missed` counts turns that had none, `tracked...` are of those on
    which nobody acted, and their ends are counted under no other name.
    """

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class SeeLead:
    """A turn came so long after its advisory."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell a frontend what became of advisories that it took."""

    frontend_id: FrontendId
    message: HintsEnded


@dataclass(frozen=True, slots=True)
class Pass:
    """Tell another shard of the tracker what is foreseen of its sessions."""

    shard: int
    message: TurnsForeseen


@dataclass(frozen=True, slots=True)
class EndTrace:
    """A traced advisory came to this.

    Attributes:
        trace: its span.
        worker_id: where its turn was expected; None: nowhere.
    """

    trace: str
    outcome: Outcome
    worker_id: WorkerId | None


Effect = Expect | Drop | Count | SeeLead | Tell | Pass | EndTrace | WakeAt
