"""Advisories on the wire: hints that a session's next turn is coming (SYMPHONY, section 3.3 and
Figure 7).
"""

from dataclasses import dataclass, field
from typing import Literal

from shared.ids import (
    DEFAULT_TENANT,
    FrontendId,
    HostId,
    ModelId,
    SessionId,
    TenantId,
    TurnId,
    WorkerId,
)
from shared.wire.messages.adapters import AdapterRef
from shared.wire.messages.agents import AgentPrefix, AgentRef

AdvisoryLife = Literal["expected", "placed", "used", "late", "expired", "overtaken", "invalidated"]
ArrivalPart = Literal["all", "session", "workflow"]
HintPayer = Literal["session", "place"]  # whose account an advisory was charged to


ADVISORY_PRIORITY = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisory:
    """The public body of ``POST /v1/advisories`` and of ``symphony.advisory.submit``.

    `expected_arrival` is seconds from now until the turn, or None when unknown. `ordered` says that
    advisories of this sender arrive in the order of their turns, so that a turn proves those before
    its own to be wrong. Higher `priority` goes first. `agent` is the one that will ask the turn, in
    which run of agents is `workflow_id`; empty: not said. After `ttl_ms` the turn is not expected
    any more. `request_id` is what the sender calls it in logs.

    The others are a frontend's, and what a sender says of them is ignored: `adapter` is what it
    found under the name that it was sent as the model, `kv_at` how many leading blocks of the
    session are on which hosts, `frontend_id` which frontend gets the outcome of the advisory,
    `place` where it came from, `payer` whose account it was charged to, and `trace` the request
    that it came with, see `shared.tracing`.
    """

    session_id: SessionId
    model_id: ModelId | None = None  # None: the model of the session's last turn
    expected_arrival: float | None = None  # seconds from now; null: not known
    ordered: bool = False  # this sender's advisories come in the order of their turns
    priority: int = ADVISORY_PRIORITY
    tenant: TenantId = DEFAULT_TENANT
    request_id: str = ""
    agent: str = ""  # the agent that takes the turn; empty: not said
    workflow_id: str = ""
    ttl_ms: int | None = None  # how long the turn is expected; null: as the tracker decides
    adapter: AdapterRef | None = None
    kv_at: dict[HostId, int] = field(default_factory=dict)
    frontend_id: FrontendId | None = None
    place: str = ""  # address that it came from; set by the frontend
    payer: HintPayer = "place"  # whose allowance it took; set by the frontend
    trace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvisoryKey:
    """Names a session's advisory, to read or invalidate it."""

    session_id: SessionId
    tenant: TenantId = DEFAULT_TENANT


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvisoryState:
    """Where an advisory stands. Times are wall-clock seconds since the epoch.

    `chance` is that of its turn's coming, as far as earlier ones teach. If it is too low, nothing
    is prefetched for the turn: it is not `acted_on`, and `why` says so.
    """

    session_id: SessionId
    state: AdvisoryLife  # where it stands; see docs/api.md
    tenant: TenantId = DEFAULT_TENANT
    model_id: ModelId | None = None
    worker_id: WorkerId | None = None
    priority: int = 1
    num_merged: int = 0  # duplicates folded into this one
    created: float = 0.0
    expires: float = 0.0  # until when the turn is expected
    agent: str = ""  # the agent that takes the turn; empty: not said
    workflow_id: str = ""
    chance: float = 1.0  # of its turn's coming, 0 to 1, by earlier advisories
    acted_on: bool = True  # false: only its outcome is tracked, nothing is reserved for it
    why: str = ""  # why it is not acted on; empty: it is


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectSession:
    """Tracker to scheduler: reserve a place for this session and move its KV there in time."""

    session_id: SessionId
    model_id: ModelId | None = None
    tenant: TenantId = DEFAULT_TENANT
    priority: int = 1
    expires_in_ns: int = 60_000_000_000
    arrives_in_ns: int = 0  # when its turn is expected; 0: at any time
    adapter: AdapterRef | None = None  # of `model_id`
    kv_at: dict[HostId, int] = field(default_factory=dict)  # leading blocks of it by host
    prefix: AgentPrefix | None = (
        None  # the session is only known to begin so; `session_id` names it
    )
    trace: str = ""  # of the advisory


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlacement:
    """Scheduler's answer: the reserved worker, or None when nothing serves the model now."""

    worker_id: WorkerId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnArrived:
    """Scheduler to tracker: a turn of this session was placed, on its reservation or not.

    `part` is what the shard that gets it has to do with it, of a divided tracker: the session, or
    the workflow of the turn's agent, or both.
    """

    session_id: SessionId
    turn_id: TurnId
    tenant: TenantId = DEFAULT_TENANT
    worker_id: WorkerId | None = None
    reserved: bool = False  # it was placed on its reservation
    request_id: str = ""
    agent: AgentRef | None = None  # whose turn it is, if its client said so
    part: ArrivalPart = "all"  # what the receiving tracker shard is to take from it


@dataclass(frozen=True, slots=True, kw_only=True)
class HintVerdict:
    """What became of the advisories of one sender.

    Attributes:
        place: as in the advisory.
        session: that paid, as in `shared.wire.hint_accounts.session_name`; empty: its place did.
        num_used: their turns came, though perhaps later than was expected.
        num_taken_back: by their sender.
        num_spurious: their turns did not come in time.
    """

    tenant: TenantId
    place: str
    session: str = ""
    num_used: int = 0
    num_taken_back: int = 0
    num_spurious: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HintsEnded:
    """Tracker to the frontend that took them: what became of some advisories.

    Attributes:
        tracker_id: of this life of the tracker. What an earlier life had not reported is lost.
        shard: of a divided tracker, whose life that is.
    """

    tracker_id: str
    verdicts: list[HintVerdict]  # one a sender
    shard: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeseenTurn:
    """A turn that was not announced: it follows one that has begun.

    Attributes:
        chance: of its coming, 0 to 1.
    """

    advisory: Advisory  # as if it had been announced
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsForeseen:
    """One shard of a divided tracker to another, which has the sessions: what it foresees of them,
    the likeliest first.
    """

    turns: list[ForeseenTurn]
