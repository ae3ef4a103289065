"""What the scheduler core asks its shell to do."""

from dataclasses import dataclass
from typing import Literal

from shared.effects import WakeAt
from shared.ids import FrontendId, WorkerId
from shared.wire.messages import (
    AutoscaleAdvice,
    PlacedTurn,
    Prefetch,
    PrefetchDrop,
    SessionPlaced,
    TurnArrived,
    TurnCancel,
    TurnFailed,
    TurnStart,
)

PlacementReason = Literal[
    "reserved", "moved", "affinity", "kv", "adapter", "balance", "replaced", "migrated"
]
Outcome = Literal["stop", "length", "cancelled", "error", "failed"]


@dataclass(frozen=True, slots=True)
class StartTurn:
    """Send this attempt to the worker. `reason` says what decided the placement.

    Attributes:
        is_sent: its frontend has sent it there already.
    """

    worker_id: WorkerId
    start: TurnStart
    reason: PlacementReason
    is_sent: bool = False


@dataclass(frozen=True, slots=True)
class StartTurns:
    """Send these attempts to the worker in one message; made by `merge_effects`."""

    worker_id: WorkerId
    starts: list[StartTurn]


@dataclass(frozen=True, slots=True)
class CancelTurn:
    """Make the worker stop these attempts."""

    worker_id: WorkerId
    cancel: TurnCancel


@dataclass(frozen=True, slots=True)
class FailTurn:
    """Report to the frontend that the turn cannot be served."""

    frontend_id: FrontendId
    failed: TurnFailed
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class SendPrefetch:
    """Make the worker prefetch for an announced turn."""

    worker_id: WorkerId
    prefetch: Prefetch


@dataclass(frozen=True, slots=True)
class DropPrefetch:
    """Make the worker drop a prefetch."""

    worker_id: WorkerId
    drop: PrefetchDrop


@dataclass(frozen=True, slots=True)
class NotifyFrontends:
    """Notify the frontends of the worker that is reserved for a session's turn."""

    placed: SessionPlaced


@dataclass(frozen=True, slots=True)
class NotifyPeer:
    """Notify the peer schedulers of a placement, or of a worker that is claimed for one turn alone.
    `merge_effects` merges those of one event.
    """

    turn: PlacedTurn | None = None
    kept: WorkerId | None = None


@dataclass(frozen=True, slots=True)
class NotifyPeers:
    """Notify the peer schedulers of an event's placements and claims; made by `merge_effects`."""

    turns: list[PlacedTurn]
    kept: list[WorkerId]


@dataclass(frozen=True, slots=True)
class NotifyArrival:
    """Notify the tracker that a session's turn was placed."""

    arrived: TurnArrived


@dataclass(frozen=True, slots=True)
class ProbeWorker:
    """Probe the worker; if it does not respond, call `on_worker_gone`."""

    worker_id: WorkerId


@dataclass(frozen=True, slots=True)
class CountTurn:
    """Count a turn that ended."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class PublishAdvice:
    """Publish how many workers are missing or idle."""

    advice: AutoscaleAdvice


Effect = (
    StartTurn
    | StartTurns
    | CancelTurn
    | FailTurn
    | SendPrefetch
    | DropPrefetch
    | NotifyFrontends
    | NotifyPeer
    | NotifyPeers
    | NotifyArrival
    | ProbeWorker
    | CountTurn
    | PublishAdvice
    | WakeAt
)


def merge_effects(effects: list[Effect]) -> list[Effect]:
    """The same effects, with all starts on one worker merged at the position of the first, and all
    notifications of peers merged at the end.
    """
    found: dict[WorkerId, StartTurns] = {}
    merged: list[Effect] = []
    notify = NotifyPeers([], [])
    for effect in effects:
        if isinstance(effect, NotifyPeer):
            if effect.turn is not None:
                notify.turns.append(effect.turn)
            if effect.kept is not None and effect.kept not in notify.kept:
                notify.kept.append(effect.kept)
        elif not isinstance(effect, StartTurn):
            merged.append(effect)
        elif (starts := found.get(effect.worker_id)) is not None:
            starts.starts.append(effect)
        else:
            found[effect.worker_id] = StartTurns(effect.worker_id, [effect])
            merged.append(found[effect.worker_id])
    if notify.turns or notify.kept:
        merged.append(notify)
    return merged
