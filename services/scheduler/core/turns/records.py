"""What the scheduler remembers of workers, turns and reservations."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from services.scheduler.core.batching.job import NEVER_NS
from services.scheduler.core.turns.arrivals import Arrivals
from services.scheduler.core.turns.kinds import Steps
from services.scheduler.core.turns.speeds import Speeds
from shared.ids import HostId, ModelId, SessionId, TenantId, TurnId, WorkerId
from shared.messages import (
    AdapterRef,
    AgentPrefix,
    TurnFailed,
    TurnRef,
    TurnSubmit,
    WorkerReport,
)
from shared.urgency import is_urgent

SessionKey = tuple[TenantId, SessionId]

NO_MODELS: frozenset[ModelId] = frozenset()
NO_ADAPTERS: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class Worker:
    """A worker as of its last report, and what was given to it since.

    Attributes:
        report: the last one heard.
        models: what new turns can be placed here for; empty unless ready and alive.
        is_probed: it was asked, in this silence, whether it is there.
        watch_at_ns: when its silence is next looked at.
        num_tokens_dispatched: prompt tokens sent since the last report.
        retired: incarnations that ended; their late reports are void.
        trial: the suspect that has this worker for itself, until it makes a token or is over.
        is_shared: another scheduler's turn was seen there since the trial began, wherever that is
            by now.
        losses: what it had when it fell silent; empty once it is heard of again.
        adapters: hashes of those that its last report says it has.
        num_far: reservations whose turns are not near yet.
        num_urgent: turns of more than the usual priority, and reservations that are near.
        speeds: by model, as it told last.
        steps: by model, what its kind measured, or what is usual as long as it has not.
        arrivals: when the turns of its reservations are expected.
        others: turns that other schedulers have there.
        kept_by: the scheduler that wants it for one turn alone, by its shard; we, too.
        kept_until_ns: unless that is told again.
        agreed_at_ns: when it is ours, should nobody object; of one that we keep.
    """

    report: WorkerReport
    heard_at_ns: int
    alive: bool = True
    models: frozenset[ModelId] = NO_MODELS
    is_probed: bool = False
    watch_at_ns: int = -1
    num_tokens_dispatched: int = 0
    turns: dict[TurnId, "Turn"] = field(default_factory=dict)
    reservations: dict[SessionKey, "Reservation"] = field(default_factory=dict)
    retired: deque[str] = field(default_factory=lambda: deque(maxlen=8))
    trial: "Turn | None" = None
    is_shared: bool = False
    losses: list["Loss"] = field(default_factory=list)
    adapters: frozenset[str] = NO_ADAPTERS
    num_far: int = 0
    num_urgent: int = 0
    speeds: dict[ModelId, Speeds] = field(default_factory=dict)
    steps: dict[ModelId, Steps] = field(default_factory=dict)
    arrivals: Arrivals = field(default_factory=Arrivals)
    others: dict[TurnId, "OtherTurn"] = field(default_factory=dict)
    kept_by: int | None = None
    kept_until_ns: int = 0
    agreed_at_ns: int = 0

    @property
    def worker_id(self) -> WorkerId:
        return self.report.worker_id

    @property
    def num_expected(self) -> int:
        """Requests held and expected soon: what the paper's default policy evens out."""
        return self.num_turns + len(self.reservations) - self.num_far

    @property
    def num_turns(self) -> int:
        """Of all schedulers."""
        return len(self.turns) + len(self.others)

    @property
    def is_open(self) -> bool:
        """Nobody is tried on it alone."""
        return self.trial is None and self.kept_by is None

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens before a new turn's, as far as is known."""
        return self.report.num_waiting_tokens + self.num_tokens_dispatched

    def holds(self, adapter_hash: str) -> bool:
        """Whether it has an adapter, or is about to: a turn on it is there, or expected."""
        return (
            adapter_hash in self.adapters
            or any(turn.adapter_hash == adapter_hash for turn in self.turns.values())
            or any(turn.adapter_hash == adapter_hash for turn in self.others.values())
            or any(
                held.adapter_hash == adapter_hash and not held.is_far
                for held in self.reservations.values()
            )
        )


@dataclass(slots=True, eq=False)
class Turn:
    """A turn that is placed on a worker or waits for one.

    Attributes:
        submit: None for a turn that only a worker's report has told of; with its prompt, if that
            went along, until it is first placed.
        attempt: highest attempt known to exist; 0 before the first.
        worker: where that attempt is; None while waiting.
        seen_seq: the worker's report that last listed it, or the last one before it was sent.
        is_urgent: it counts as one of its worker's urgent ones.
        num_generated: tokens that a worker told of, of all attempts.
        num_lost: attempts lost since it last made a token.
        num_proven: those of them that were lost with a worker which surely died.
        num_unproven: those of them that were lost with a worker which may only be out of reach.
        missed_by: the worker that reports, but not what was sent there last of it: it may
            be deaf.
        awaited: the silent worker that it was alone with: what became of that decides about it.
        adapter_hash, lora_rank: of the adapter that it runs on, as far as is known; empty and 0:
            of none.
    """

    turn_id: TurnId
    submit: TurnSubmit | None
    attempt: int = 0
    worker: Worker | None = None
    seen_seq: int = 0
    placed_at_ns: int = 0
    waits_from_ns: int = 0
    wait_until_ns: int = 0
    num_placements: int = 0
    is_urgent: bool = False
    num_generated: int = 0
    num_lost: int = 0
    num_proven: int = 0
    num_unproven: int = 0
    missed_by: Worker | None = None
    awaited: Worker | None = None
    adapter_hash: str = ""
    lora_rank: int = 0

    @property
    def ref(self) -> TurnRef:
        """Its attempts up to the highest one known."""
        return TurnRef(turn_id=self.turn_id, attempt=self.attempt)


@dataclass(slots=True)
class OtherTurn:
    """A turn that another scheduler has placed.

    Attributes:
        seen_seq: the worker's report that last listed it, or the last one before it was told.
    """

    seen_seq: int
    adapter_hash: str = ""
    is_urgent: bool = False


@dataclass(frozen=True, slots=True)
class Loss:
    """A turn that was on a worker when that fell silent.

    Attributes:
        num_generated: its tokens at that moment; once it has more, the loss does not matter.
    """

    turn: Turn
    num_generated: int


@dataclass(slots=True, eq=False)
class Reservation:
    """A place kept for a session's next turn.

    Attributes:
        arrives_at_ns: when the turn is expected; 0: at any time.
        told_at_ns: when that was told.
        is_far: not soon, or it should have been here long ago: it is no load.
        looked_at_ns: when it is next seen whether it is.
        kv_at: leading blocks of the session by host.
        prefix: of an agent that is expected in a session that is not known yet.
        trace: of the advisory.
    """

    key: SessionKey
    model_id: ModelId
    worker: Worker
    priority: int
    expires_at_ns: int
    adapter: AdapterRef | None = None
    arrives_at_ns: int = 0
    told_at_ns: int = 0
    is_far: bool = False
    looked_at_ns: int = NEVER_NS
    kv_at: Mapping[HostId, int] = field(default_factory=dict)
    prefix: AgentPrefix | None = None
    trace: str = ""

    @property
    def is_urgent(self) -> bool:
        """It counts as one of its worker's urgent ones."""
        return is_urgent(self.priority) and not self.is_far

    @property
    def adapter_hash(self) -> str:
        """Of the adapter; empty without one."""
        return "" if self.adapter is None else self.adapter.adapter_hash


@dataclass(frozen=True, slots=True)
class Ended:
    """What is kept of a turn that is over: its attempts are void.

    Attributes:
        failed: what its frontend was told, and is told again if it did not hear.
    """

    attempt: int
    cancelled: bool = False
    failed: TurnFailed | None = None
