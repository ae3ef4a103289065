"""What the scheduler core asks its shell to do."""

from dataclasses import dataclass
from typing import Literal

from shared.effects import WakeAt
from shared.ids import FrontendId, WorkerId
from shared.messages import (
    PlacedTurn,
    Prefetch,
    PrefetchDrop,
    SessionPlaced,
    TurnArrived,
    TurnCancel,
    TurnFailed,
    TurnStart,
)

PlacementReason = Literal["reserved", "moved", "affinity", "kv", "adapter", "balance", "replaced"]
Outcome = Literal["stop", "length", "cancelled", "error", "failed"]


@dataclass(frozen=True, slots=True)
class StartTurn:
    """Send this attempt to the worker. `reason` says what decided the place.

    Attributes:
        is_sent: its frontend has sent it there.
    """

    worker_id: WorkerId
    start: TurnStart
    reason: PlacementReason
    is_sent: bool = False


@dataclass(frozen=True, slots=True)
class StartTurns:
    """Send these attempts to the worker together; made by `together`."""

    worker_id: WorkerId
    starts: list[StartTurn]


@dataclass(frozen=True, slots=True)
class CancelTurn:
    """Tell the worker to stop these attempts."""

    worker_id: WorkerId
    cancel: TurnCancel


@dataclass(frozen=True, slots=True)
class FailTurn:
    """Tell the frontend that the turn cannot be served."""

    frontend_id: FrontendId
    failed: TurnFailed
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class SendPrefetch:
    """Tell the worker that a session's turn is coming."""

    worker_id: WorkerId
    prefetch: Prefetch


@dataclass(frozen=True, slots=True)
class DropPrefetch:
    """Tell the worker that the turn is not coming there."""

    worker_id: WorkerId
    drop: PrefetchDrop


@dataclass(frozen=True, slots=True)
class TellPlace:
    """Tell the frontends where a session's turn is expected."""

    placed: SessionPlaced


@dataclass(frozen=True, slots=True)
class TellPlaced:
    """Tell the other schedulers among which turns are divided what goes to a worker, or that it is
    kept for one turn alone. Those of one event go together.
    """

    turn: PlacedTurn | None = None
    kept: WorkerId | None = None


@dataclass(frozen=True, slots=True)
class TellOthers:
    """All of an event; made by `together`."""

    turns: list[PlacedTurn]
    kept: list[WorkerId]


@dataclass(frozen=True, slots=True)
class NotifyArrival:
    """Tell the tracker that a session's turn was placed."""

    arrived: TurnArrived


@dataclass(frozen=True, slots=True)
class ProbeWorker:
    """Ask whether anybody listens at the worker; if not, call `on_worker_gone`."""

    worker_id: WorkerId


@dataclass(frozen=True, slots=True)
class CountTurn:
    """A turn is over."""

    outcome: Outcome


Effect = (
    StartTurn
    | StartTurns
    | CancelTurn
    | FailTurn
    | SendPrefetch
    | DropPrefetch
    | TellPlace
    | TellPlaced
    | TellOthers
    | NotifyArrival
    | ProbeWorker
    | CountTurn
    | WakeAt
)


def together(effects: list[Effect]) -> list[Effect]:
    """The same, with all starts at one worker as one effect, where the first of them was, and all
    that the other schedulers are told as the last one.
    """
    found: dict[WorkerId, StartTurns] = {}
    kept_apart: list[Effect] = []
    told = TellOthers([], [])
    for effect in effects:
        if isinstance(effect, TellPlaced):
            if effect.turn is not None:
                told.turns.append(effect.turn)
            if effect.kept is not None and effect.kept not in told.kept:
                told.kept.append(effect.kept)
        elif not isinstance(effect, StartTurn):
            kept_apart.append(effect)
        elif (starts := found.get(effect.worker_id)) is not None:
            starts.starts.append(effect)
        else:
            found[effect.worker_id] = StartTurns(effect.worker_id, [effect])
            kept_apart.append(found[effect.worker_id])
    if told.turns or told.kept:
        kept_apart.append(told)
    return kept_apart
