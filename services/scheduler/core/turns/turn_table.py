"""The state of every turn: on a worker, waiting for one, or ended. Callers decide what changes."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from services.scheduler.core.base.effects import (
    CancelTurn,
    CountTurn,
    DropPrefetch,
    Effect,
    FailTurn,
    NotifyArrival,
    NotifyPeer,
    PlacementReason,
    StartTurn,
)
from services.scheduler.core.fleet.records import Ended, Turn, Worker
from services.scheduler.core.fleet.room import NOTHING, Promise
from services.scheduler.core.turns.context import TurnContext
from services.scheduler.core.turns.placer import last_of
from services.scheduler.core.turns.waiting import Rank, WaitingTurns
from shared.ids import SessionId, TurnId
from shared.wire.messages import (
    PlacedTurn,
    PrefetchDrop,
    TurnArrived,
    TurnCancel,
    TurnFailed,
    TurnRef,
    TurnSubmit,
    start_of,
)
from shared.wire.urgency import is_urgent

ATTEMPTS_PER_TERM = 4096  # of one turn; far more than `Limits.losses_max` allows
SENT_ATTEMPT = 1  # attempt number of turns that frontends send to workers: below any scheduler's
PROMPTS_WAITING_MAX = 1024  # up to 48 KiB each; the worker pulls the prompts of further turns


def moving_name(turn_id: TurnId) -> SessionId:
    """Under which a turn that moves is expected: of no session that a client can announce."""
    return SessionId(f"#turn-{turn_id}")


def first_attempt(fence: int) -> int:
    """The lowest attempt number of the term with this fence. Fences grow from term to term,
    whatever the clocks say, so it is above every attempt of an earlier term.
    """
    return fence * ATTEMPTS_PER_TERM


class TurnTable:
    """Every open turn in exactly one state, and a bounded memory of turns that ended.

    Args:
        attempt_floor: every attempt that is dispatched has at least this number.
        on_room: called with a worker on which waiting turns may find room now.

    Attributes:
        waiting: turns without a worker.
    """

    def __init__(
        self, context: TurnContext, *, attempt_floor: int, on_room: Callable[[Worker], None]
    ) -> None:
        self._share = context.share
        self._placer = context.placer
        self._limits = context.limits
        self._out: list[Effect] = context.out
        self._attempt_floor = attempt_floor
        self._on_room = on_room
        self._turns: dict[TurnId, Turn] = {}
        self.waiting = WaitingTurns()
        self._ended: OrderedDict[TurnId, Ended] = OrderedDict()

    def __len__(self) -> int:
        return len(self._turns)

    def get(self, turn_id: TurnId) -> Turn | None:
        """An open turn; None if unknown or ended."""
        return self._turns.get(turn_id)

    def ended(self, turn_id: TurnId) -> Ended | None:
        """What is remembered of an ended turn."""
        return self._ended.get(turn_id)

    def add(self, turn: Turn) -> None:
        """Add a new turn. The caller starts it, adopts it or lets it wait at once."""
        self._turns[turn.turn_id] = turn

    def start(
        self,
        turn: Turn,
        submit: TurnSubmit,
        worker: Worker,
        reason: PlacementReason,
        now_ns: int,
        promise: Promise = NOTHING,
        expected_as: SessionId | None = None,
    ) -> None:
        """Dispatch an unplaced turn to this worker under its next attempt number. If the frontend
        has sent the first attempt there itself, that attempt is used.

        Args:
            promise: what it takes of the worker.
            expected_as: name of its reservation, if that is not its session's.
        """
        is_sent = (
            submit.sent_to == worker.worker_id
            and not turn.num_placements
            and turn.attempt == SENT_ATTEMPT
        )
        self._assign(turn, worker, now_ns)
        worker.promise(turn, promise)
        # A later attempt continues after the tokens of earlier ones: it pulls the prompt.
        prompt = submit.prompt if not turn.attempt else ""
        if not is_sent:
            turn.attempt = max(turn.attempt + 1, self._attempt_floor)
        turn.seen_seq = worker.report.seq
        num_tokens = self._num_to_compute(submit)
        worker.num_tokens_dispatched += num_tokens
        start = start_of(
            submit, turn.attempt, prompt, was_lost=turn.num_placements > 1, expected_as=expected_as
        )
        self._out.append(StartTurn(worker.worker_id, start, reason, is_sent))
        if not self._share.is_all:
            self._notify_peers(turn, worker, num_tokens)
        if submit.prompt:
            turn.submit = replace(submit, prompt="")
        self.note_arrival(submit, turn, worker, now_ns, is_reserved=reason == "reserved")

    def _notify_peers(self, turn: Turn, worker: Worker, num_tokens: int) -> None:
        placed = PlacedTurn(
            turn_id=turn.turn_id,
            worker_id=worker.worker_id,
            num_tokens=num_tokens,
            is_urgent=turn.is_urgent,
            adapter_hash="" if turn.adapter is None else turn.adapter.adapter_hash,
            lora_rank=0 if turn.adapter is None else turn.adapter.lora_rank,
            slo_tpot_ms=turn.target_ms,
            model_id=turn.model_id,
            num_blocks=turn.promise.num_blocks,
        )
        self._out.append(NotifyPeer(placed))

    def note_arrival(
        self, submit: TurnSubmit, turn: Turn, worker: Worker, now_ns: int, *, is_reserved: bool
    ) -> None:
        """Remember where the session's latest turn runs; report its first placement as arrival."""
        if submit.session_id is None:
            return
        key = (submit.tenant, submit.session_id)
        names = [key] if submit.agent is None else [key, last_of(submit.tenant, submit.agent)]
        for name in names:
            self._placer.remember(
                name, worker.worker_id, submit.model_id, submit.adapter, submit.num_prompt_tokens,
                now_ns,
            )  # fmt: skip
        if turn.num_placements == 1:
            arrived = TurnArrived(
                session_id=submit.session_id,
                turn_id=turn.turn_id,
                tenant=submit.tenant,
                worker_id=worker.worker_id,
                reserved=is_reserved,
                request_id=submit.request_id,
                agent=submit.agent,
            )
            self._out.append(NotifyArrival(arrived))

    def note_submit(self, turn: Turn, submit: TurnSubmit) -> None:
        """More is known of an adopted turn. Its prompt is not needed: an attempt exists."""
        worker = turn.worker
        if worker is not None:
            worker.leave(turn)
        turn.submit = replace(submit, prompt="")
        if worker is not None:
            worker.enter(turn)
            worker.promise(turn, turn.promise)

    def raise_attempts(self, floor: int) -> None:
        """Raise the lowest attempt number."""
        self._attempt_floor = max(self._attempt_floor, floor)

    def adopt(self, turn: Turn, worker: Worker, now_ns: int) -> None:
        """Record that this worker runs the turn under its highest known attempt."""
        if turn.worker is not None:
            self.cancel_attempt(turn.worker, turn.ref)
            self.unassign(turn)
        self._assign(turn, worker, now_ns)

    def unassign(self, turn: Turn) -> None:
        """Take a turn from its worker. The caller places it again or closes it at once."""
        worker = turn.worker
        assert worker is not None
        self.end_move(turn)
        del worker.turns[turn.turn_id]
        worker.num_urgent -= turn.is_urgent
        turn.is_urgent = False
        turn.worker = None
        worker.leave(turn)
        if worker.isolation.turn is turn:
            worker.isolation.turn = None  # it is open to others again
        self._on_room(worker)

    def end_move(self, turn: Turn, *, is_over: bool = True) -> None:
        """A turn is not about to move any more, if it was.

        Args:
            is_over: what was prefetched for it is of no use.
        """
        move, worker = turn.move, turn.worker
        if move is None or worker is None:
            return
        turn.move = None
        worker.num_leaving -= 1
        move.target.num_coming -= 1
        if is_over and turn.submit is not None:
            drop = PrefetchDrop(
                session_id=moving_name(turn.turn_id),
                model_id=turn.submit.model_id,
                tenant=turn.submit.tenant,
            )
            self._out.append(DropPrefetch(move.target.worker_id, drop))

    def end_isolation(self, worker: Worker) -> None:
        """Open the worker to other turns again."""
        worker.isolation.turn = None
        self._on_room(worker)

    def wait(self, turn: Turn, submit: TurnSubmit, rank: Rank | None) -> None:
        """Let a turn wait for a worker that does not wait yet.

        Args:
            rank: as `WaitingTurns.add` has it.
        """
        if submit.prompt and len(self.waiting) >= PROMPTS_WAITING_MAX:
            turn.submit = replace(submit, prompt="")
        self.waiting.add(turn, rank)

    def still_waits(self, turn: Turn) -> bool:
        return self._turns.get(turn.turn_id) is turn and turn.worker is None

    def fail(
        self, turn: Turn, code: str, message: str, http_status: int = 503, retry_after_s: float = 1
    ) -> None:
        """End a turn with an error, which is sent again if the frontend submits the turn again."""
        assert turn.submit is not None
        failed = TurnFailed(
            turn_id=turn.turn_id,
            code=code,
            message=message,
            http_status=http_status,
            retry_after_s=retry_after_s,
        )
        self._out.append(FailTurn(turn.submit.frontend_id, failed, turn.submit.request_id))
        self._out.append(CountTurn("failed"))
        self.close(turn, failed=failed)

    def close(
        self, turn: Turn, *, cancelled: bool = False, failed: TurnFailed | None = None
    ) -> None:
        """End a turn, in whatever state it is."""
        self._turns.pop(turn.turn_id, None)
        self._stop_waiting(turn)
        if turn.worker is not None:
            self.unassign(turn)
        self.remember(turn.turn_id, Ended(turn.attempt, cancelled, failed))

    def remember(self, turn_id: TurnId, ended: Ended) -> None:
        """Remember that this turn has ended, whether it was known here or not."""
        self._ended[turn_id] = ended
        self._ended.move_to_end(turn_id)
        if len(self._ended) > self._limits.ended_max:
            self._ended.popitem(last=False)

    def cancel_attempt(self, worker: Worker, ref: TurnRef) -> None:
        """Stop the turn's attempts up to this one on a worker; later ones may run elsewhere."""
        cancel = TurnCancel(turn_id=ref.turn_id, attempt=ref.attempt)
        self._out.append(CancelTurn(worker.worker_id, cancel))

    def _num_to_compute(self, submit: TurnSubmit) -> int:
        """Prompt tokens to compute, provided that the history's KV is found."""
        num_history = 0
        if submit.session_id is not None:
            num_history = self._placer.num_history_tokens_of(
                (submit.tenant, submit.session_id), submit.model_id, submit.adapter
            )
        return max(submit.num_prompt_tokens - num_history, 0)

    def _assign(self, turn: Turn, worker: Worker, now_ns: int) -> None:
        assert turn.worker is None
        turn.promise = NOTHING
        self._stop_waiting(turn)
        turn.worker = worker
        turn.placed_at_ns = now_ns
        turn.num_placements += 1
        worker.turns[turn.turn_id] = turn
        worker.enter(turn)
        turn.is_urgent = turn.submit is not None and is_urgent(turn.submit.priority)
        worker.num_urgent += turn.is_urgent

    def _stop_waiting(self, turn: Turn) -> None:
        turn.awaited = None
        self.waiting.remove(turn)
