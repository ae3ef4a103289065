"""What the scheduler remembers of workers, turns and reservations."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from services.scheduler.core.batching.job import NEVER_NS
from services.scheduler.core.fleet.kinds import Steps
from services.scheduler.core.fleet.mix import NO_MIX, Adapter, Mix
from services.scheduler.core.fleet.room import NOTHING, Promise, Room
from services.scheduler.core.fleet.speeds import LoraStep, Speeds
from shared.ids import HostId, ModelId, SessionId, TenantId, TurnId, WorkerId
from shared.wire.messages import (
    AdapterRef,
    AgentPrefix,
    TurnFailed,
    TurnRef,
    TurnSubmit,
    WorkerReport,
)
from shared.wire.urgency import is_urgent

SLICE_NS = 5_000_000_000  # about as long as a turn runs
BESIDE = 0.5  # weight of turns expected in the slice before or after
UNTIMED = 0.2  # weight of turns without an arrival time: they come within some ten seconds
ELSEWHEN = 0.1  # weight of turns that are expected soon but at other times, or are late


@dataclass(slots=True)
class ExpectedTurns:
    """Turns expected at one worker, counted by slices of time.

    Attributes:
        num_untimed: turns without an arrival time.
    """

    num_untimed: int = 0
    _by_slice: Counter[int] = field(default_factory=Counter)

    def add(self, at_ns: int) -> None:
        """Count a turn expected at this instant; 0: at an unknown time."""
        if at_ns:
            self._by_slice[at_ns // SLICE_NS] += 1
        else:
            self.num_untimed += 1

    def remove(self, at_ns: int) -> None:
        """Uncount a turn that arrived or is not expected any more."""
        if not at_ns:
            self.num_untimed -= 1
            return
        number = at_ns // SLICE_NS
        self._by_slice[number] -= 1
        if not self._by_slice[number]:
            del self._by_slice[number]

    def about(self, at_ns: int, num_near: int) -> float:
        """Expected number of turns that run beside a turn that arrives at this instant.

        Args:
            num_near: turns that count as load now, timed or not.

        >>> expected = ExpectedTurns()
        >>> for at_s in (100, 101, 106, 120): expected.add(at_s * 1_000_000_000)
        >>> expected.about(102 * 1_000_000_000, num_near=4)
        2.6
        """
        if not num_near and not self._by_slice:
            return 0.0
        number, by_slice = at_ns // SLICE_NS, self._by_slice
        with_it = by_slice.get(number, 0)
        beside = by_slice.get(number - 1, 0) + by_slice.get(number + 1, 0)
        num_else = max(num_near - self.num_untimed - with_it - beside, 0)
        return with_it + BESIDE * beside + UNTIMED * self.num_untimed + ELSEWHEN * num_else


SessionKey = tuple[TenantId, SessionId]

NO_MODEL = ModelId("")
NO_MODELS: frozenset[ModelId] = frozenset()
NO_ADAPTERS: frozenset[str] = frozenset()


@dataclass(slots=True)
class Isolation:
    """Whether a worker is kept for one quarantined turn alone (`quarantine.py`).

    Attributes:
        turn: the quarantined turn that runs there alone, until it makes a token or ends.
        was_shared: a peer scheduler's turn was there at some time since that turn started.
        claimed_by: shard of the scheduler that wants the worker for one turn alone.
        claimed_until_ns: when the claim ends unless it is repeated.
        agreed_at_ns: when this scheduler's claim holds, unless a peer objects before.
    """

    turn: "Turn | None" = None
    was_shared: bool = False
    claimed_by: int | None = None
    claimed_until_ns: int = 0
    agreed_at_ns: int = 0


@dataclass(slots=True, eq=False)
class Worker:
    """A worker as of its last report, and what was dispatched to it since.

    Attributes:
        models: models that it accepts turns for; empty unless ready and alive.
        is_probed: a probe was sent since its last report.
        watch_at_ns: when its silence is next checked.
        num_tokens_dispatched: prompt tokens sent since the last report.
        rooms: of each model whose turns it has or reports.
        mixes: of each model of which turns have adapters or targets.
        lora_steps: by model, what adapters add to its steps.
        retired: incarnations that ended; their late reports are void.
        isolation: whether it is kept for one quarantined turn.
        losses: turns that it had when it fell silent; empty once it reports again.
        adapters: hashes of the adapters that it has loaded by its last report.
        num_far: reservations whose turns are not near yet.
        num_urgent: turns, and near reservations, of more than the usual priority.
        speeds: by model, as last reported.
        steps: by model, the step times of its kind of worker.
        expected: when the turns of its reservations are expected.
        peer_turns: turns that peer schedulers have there.
        num_leaving, num_coming: turns that are about to move from there, and to there.
    """

    report: WorkerReport
    reported_at_ns: int
    alive: bool = True
    models: frozenset[ModelId] = NO_MODELS
    is_probed: bool = False
    watch_at_ns: int = -1
    num_tokens_dispatched: int = 0
    rooms: dict[ModelId, Room] = field(default_factory=dict)
    mixes: dict[ModelId, Mix] = field(default_factory=dict)
    lora_steps: dict[ModelId, LoraStep] = field(default_factory=dict)
    turns: dict[TurnId, "Turn"] = field(default_factory=dict)
    reservations: dict[SessionKey, "Reservation"] = field(default_factory=dict)
    retired: deque[str] = field(default_factory=lambda: deque(maxlen=8))
    isolation: Isolation = field(default_factory=Isolation)
    losses: list["Loss"] = field(default_factory=list)
    adapters: frozenset[str] = NO_ADAPTERS
    num_far: int = 0
    num_urgent: int = 0
    speeds: dict[ModelId, Speeds] = field(default_factory=dict)
    steps: dict[ModelId, Steps] = field(default_factory=dict)
    expected: ExpectedTurns = field(default_factory=ExpectedTurns)
    peer_turns: dict[TurnId, "PeerTurn"] = field(default_factory=dict)
    num_leaving: int = 0
    num_coming: int = 0

    @property
    def worker_id(self) -> WorkerId:
        return self.report.worker_id

    @property
    def num_expected(self) -> int:
        """Turns held and expected soon: what the paper's default policy balances."""
        return self.num_turns + len(self.reservations) - self.num_far

    @property
    def num_turns(self) -> int:
        """Turns of all schedulers."""
        return len(self.turns) + len(self.peer_turns)

    @property
    def is_open(self) -> bool:
        """Whether any turn may be placed there: no quarantined turn needs it alone."""
        return self.isolation.turn is None and self.isolation.claimed_by is None

    @property
    def is_ending(self) -> bool:
        """Whether it takes no more turns, and stops once it has none or its patience ends."""
        return self.alive and self.report.state == "draining"

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens that are computed before those of a new turn."""
        return self.report.num_waiting_tokens + self.num_tokens_dispatched

    def room(self, model_id: ModelId) -> Room:
        """Of one of its models."""
        if (room := self.rooms.get(model_id)) is None:
            room = self.rooms[model_id] = Room()
        return room

    def enter(self, turn: "Turn | PeerTurn") -> None:
        """A turn is there."""
        turn.counted_in = turn.model_id or self._only_model
        if turn.adapter is not None or turn.target_ms is not None:
            mix = self.mixes.setdefault(turn.counted_in, Mix())
            mix.add(turn.adapter, turn.target_ms)

    def leave(self, turn: "Turn | PeerTurn") -> None:
        """A turn that entered is there no more."""
        if turn.room is not None:  # else the last report does not count it
            turn.room.give(turn.promise)
            turn.room = None
        if (mix := self.mixes.get(turn.counted_in)) is not None:
            mix.remove(turn.adapter, turn.target_ms)
            if mix == NO_MIX:
                del self.mixes[turn.counted_in]

    @property
    def _only_model(self) -> ModelId:
        """The model that it has; empty: it has several."""
        models = self.report.models
        return models[0].model_id if len(models) == 1 else NO_MODEL

    def promise(self, turn: "Turn | PeerTurn", promise: Promise) -> None:
        """A turn that entered takes so much of the room of its model."""
        turn.promise, turn.room = promise, self.room(turn.counted_in)
        turn.room.take(promise)

    def fits(self, model_id: ModelId, num_blocks: int) -> bool:
        """Whether a turn that needs so many blocks can begin there soon."""
        room = self.rooms.get(model_id)
        return room is None or room.fits(num_blocks, self.report.turns_running_max)

    def has_loaded(self, adapter_hash: str) -> bool:
        """Whether a turn on this adapter can begin there at once."""
        return adapter_hash in self.adapters or any(
            mix.has(adapter_hash) for mix in self.mixes.values()
        )

    def holds(self, adapter_hash: str) -> bool:
        """Whether it has an adapter, or will: a turn that uses it is there or expected soon."""
        return self.has_loaded(adapter_hash) or any(
            held.adapter_hash == adapter_hash and not held.is_far
            for held in self.reservations.values()
        )


@dataclass(slots=True, eq=False)
class Turn:
    """A turn that is placed on a worker or waits for one.

    Attributes:
        submit: None for a turn that is known from a worker's report only. Contains the prompt, if
            it was submitted with it, until the turn is first placed.
        attempt: highest attempt known to exist; 0 before the first.
        worker: where that attempt is; None while waiting.
        seen_seq: the worker's report that last listed it, or the last one before it was sent.
        is_urgent: it is counted in its worker's `num_urgent`.
        num_generated: tokens of all attempts, as reported by workers.
        num_lost: attempts lost since it last made a token.
        num_proven: those of them that were lost with a worker which surely died.
        num_unproven: those of them that were lost with a worker which may only be unreachable.
        missed_by: a worker that reports but lacks the attempt that was sent to it: it may receive
            nothing.
        awaited: the silent worker that it was alone on; whether that died decides about the turn.
        adapter: that it runs on, as far as is known; None: the base model.
        promise: what it takes of its worker.
        room: of its worker, that counts it.
        counted_in: the model whose mix counts it on its worker.
        move: to another worker, while that prefetches what it runs on.
        moved_at_ns: when it last moved, or was to move and stayed; 0: never.
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
    adapter: Adapter | None = None
    promise: Promise = NOTHING
    room: Room | None = None
    counted_in: ModelId = NO_MODEL
    move: "Move | None" = None
    moved_at_ns: int = 0

    @property
    def model_id(self) -> ModelId:
        """Empty: not known."""
        return NO_MODEL if self.submit is None else self.submit.model_id

    @property
    def target_ms(self) -> float | None:
        """For the time between its tokens."""
        return None if self.submit is None else self.submit.slo_tpot_ms

    @property
    def ref(self) -> TurnRef:
        """Its attempts up to the highest one known."""
        return TurnRef(turn_id=self.turn_id, attempt=self.attempt)


MoveReason = Literal["ending", "blocks", "target", "gathered"]


@dataclass(slots=True, eq=False)
class Move:
    """A running turn is about to go on at another worker (`moves.py`).

    Attributes:
        num_blocks: of its tokens, that are in the pool there; None: it is still being prefetched.
    """

    target: Worker
    reason: MoveReason
    num_blocks: int | None = None


@dataclass(slots=True)
class PeerTurn:
    """A turn that a peer scheduler has placed.

    Attributes:
        seen_seq: the worker's report that last listed it, or the last one before it was announced.
        model_id: empty: not known.
    """

    seen_seq: int
    adapter: Adapter | None = None
    is_urgent: bool = False
    model_id: ModelId = NO_MODEL
    promise: Promise = NOTHING
    target_ms: float | None = None
    room: Room | None = None
    counted_in: ModelId = NO_MODEL


@dataclass(frozen=True, slots=True)
class Loss:
    """A turn that was on a worker when that fell silent.

    Attributes:
        num_generated: its tokens at that moment; once it has more, the loss no longer counts.
    """

    turn: Turn
    num_generated: int


@dataclass(slots=True, eq=False)
class Reservation:
    """A place on a worker for a session's next turn.

    Attributes:
        arrives_at_ns: when the turn is expected; 0: at any time.
        advised_at_ns: when it was last announced.
        is_far: the turn is expected much later, or is long overdue: it does not count as load.
        looked_at_ns: when `is_far` is next evaluated.
        kv_at: leading blocks of the session by host.
        prefix: of the agent whose turn is expected, where its session is not known yet.
        trace: of the advisory.
    """

    key: SessionKey
    model_id: ModelId
    worker: Worker
    priority: int
    expires_at_ns: int
    adapter: AdapterRef | None = None
    arrives_at_ns: int = 0
    advised_at_ns: int = 0
    is_far: bool = False
    looked_at_ns: int = NEVER_NS
    kv_at: Mapping[HostId, int] = field(default_factory=dict)
    prefix: AgentPrefix | None = None
    trace: str = ""

    @property
    def is_urgent(self) -> bool:
        """Whether it is counted in its worker's `num_urgent`."""
        return is_urgent(self.priority) and not self.is_far

    @property
    def adapter_hash(self) -> str:
        """Hash of the adapter; empty without one."""
        return "" if self.adapter is None else self.adapter.adapter_hash


@dataclass(frozen=True, slots=True)
class Ended:
    """What is remembered of a turn that ended: its attempts are void.

    Attributes:
        failed: the error sent to its frontend, which is sent again on a repeated submit.
    """

    attempt: int
    cancelled: bool = False
    failed: TurnFailed | None = None
