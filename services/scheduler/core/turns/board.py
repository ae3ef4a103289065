"""Where every turn is: on a worker, waiting for one, or over. Others decide what moves."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace

from services.scheduler.core.effects import (
    CancelTurn,
    CountTurn,
    Effect,
    FailTurn,
    NotifyArrival,
    PlacementReason,
    StartTurn,
    TellPlaced,
)
from services.scheduler.core.turns.limits import Limits
from services.scheduler.core.turns.placer import Placer, last_of
from services.scheduler.core.turns.records import Ended, Turn, Worker
from shared.ids import ModelId, SessionId, TurnId
from shared.messages import (
    PlacedTurn,
    TurnArrived,
    TurnCancel,
    TurnFailed,
    TurnRef,
    TurnSubmit,
    start_of,
)
from shared.shards import Share
from shared.urgency import is_urgent

ATTEMPTS_PER_TERM = 4096  # of a turn; far more than it survives
SENT_ATTEMPT = 1  # of what frontends send to workers themselves: below every scheduler's
PROMPTS_WAITING_MAX = 4096  # at some kilobytes each; those of further turns are pulled


def first_attempt(fence: int) -> int:
    """The attempt floor of the term under this fence. Fences grow with terms whatever any clock
    says, so no attempt of an earlier term reaches it.
    """
    return fence * ATTEMPTS_PER_TERM


class Board:
    """Every open turn in exactly one place, and what is remembered of those that are over.

    Args:
        attempt_floor: the first attempt dispatched of any turn is at least this.
        on_room: told of a worker on which turns that wait may find room now.
    """

    def __init__(
        self,
        *,
        placer: Placer,
        limits: Limits,
        out: list[Effect],
        attempt_floor: int,
        share: Share,
        on_room: Callable[[Worker], None],
    ) -> None:
        self._share = share
        self._placer = placer
        self._limits = limits
        self._out = out
        self._attempt_floor = attempt_floor
        self._on_room = on_room
        self._turns: dict[TurnId, Turn] = {}
        self._waiting: dict[ModelId, dict[TurnId, Turn]] = {}
        self._ended: OrderedDict[TurnId, Ended] = OrderedDict()

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def num_waiting(self) -> int:
        return sum(len(turns) for turns in self._waiting.values())

    def get(self, turn_id: TurnId) -> Turn | None:
        """A turn that is not over."""
        return self._turns.get(turn_id)

    def ended(self, turn_id: TurnId) -> Ended | None:
        """What is remembered of a turn that is over."""
        return self._ended.get(turn_id)

    def waiting(self, model_id: ModelId) -> list[Turn]:
        """The turns that wait for a worker of this model."""
        return list(self._waiting.get(model_id, {}).values())

    def models_waited_for(self) -> list[ModelId]:
        return list(self._waiting)

    def is_waited_for(self, models: Iterable[ModelId]) -> bool:
        return any(model_id in self._waiting for model_id in models)

    def add(self, turn: Turn) -> None:
        """A new turn, which is to be started, adopted or set to wait at once."""
        self._turns[turn.turn_id] = turn

    def start(
        self,
        turn: Turn,
        submit: TurnSubmit,
        worker: Worker,
        reason: PlacementReason,
        now_ns: int,
        expected_as: SessionId | None = None,
    ) -> None:
        """Send a turn that is on no worker to this one, under its next attempt; if its frontend has
        sent the first one there, it is on its way.

        Args:
            expected_as: its place was kept there under this name; None: under its session's.
        """
        is_sent = (
            submit.sent_to == worker.worker_id
            and not turn.num_placements
            and turn.attempt == SENT_ATTEMPT
        )
        self._assign(turn, worker, now_ns)
        # An attempt after others goes on behind what they made: it has to ask.
        prompt = submit.prompt if not turn.attempt else ""
        if not is_sent:
            turn.attempt = max(turn.attempt + 1, self._attempt_floor)
        turn.seen_seq = worker.report.seq
        num_tokens = self._num_to_compute(submit)
        worker.num_tokens_dispatched += num_tokens
        start = start_of(
            submit,
            turn.attempt,
            prompt,
            was_lost=turn.num_placements > 1,
            expected_as=expected_as,
        )
        self._out.append(StartTurn(worker.worker_id, start, reason, is_sent))
        if not self._share.is_all:
            self._tell_others(turn, worker, num_tokens)
        if submit.prompt:
            turn.submit = replace(submit, prompt="")
        self.note_arrival(submit, turn, worker, now_ns, is_reserved=reason == "reserved")

    def _tell_others(self, turn: Turn, worker: Worker, num_tokens: int) -> None:
        placed = PlacedTurn(
            turn_id=turn.turn_id,
            worker_id=worker.worker_id,
            num_tokens=num_tokens,
            is_urgent=turn.is_urgent,
            adapter_hash=turn.adapter_hash,
        )
        self._out.append(TellPlaced(placed))

    def note_arrival(
        self, submit: TurnSubmit, turn: Turn, worker: Worker, now_ns: int, *, is_reserved: bool
    ) -> None:
        """The session's latest turn is there; if it has just come, nobody expects it any more."""
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

    def raise_attempts(self, floor: int) -> None:
        """From now on every attempt is at least this."""
        self._attempt_floor = max(self._attempt_floor, floor)

    def adopt(self, turn: Turn, worker: Worker, now_ns: int) -> None:
        """A worker runs this turn under the highest attempt known: that is where it is placed."""
        if turn.worker is not None:
            self.cancel_attempt(turn.worker, turn.ref)
            self.unassign(turn)
        self._assign(turn, worker, now_ns)

    def unassign(self, turn: Turn) -> None:
        """Take a turn from its worker; it is to be placed again, or closed, at once."""
        worker = turn.worker
        assert worker is not None
        del worker.turns[turn.turn_id]
        worker.num_urgent -= turn.is_urgent
        turn.is_urgent = False
        turn.worker = None
        if worker.trial is turn:
            self.end_trial(worker)
        elif not worker.num_turns:  # suspects wait for that
            self._on_room(worker)

    def end_trial(self, worker: Worker) -> None:
        """The worker is there for everybody again."""
        worker.trial = None
        self._on_room(worker)

    def wait(self, turn: Turn, submit: TurnSubmit) -> bool:
        """Let a turn wait for a worker; False if it does already."""
        waiting = self._waiting.setdefault(submit.model_id, {})
        if turn.turn_id in waiting:
            return False
        if submit.prompt and self.num_waiting >= PROMPTS_WAITING_MAX:
            turn.submit = replace(submit, prompt="")
        waiting[turn.turn_id] = turn
        return True

    def still_waits(self, turn: Turn) -> bool:
        return self._turns.get(turn.turn_id) is turn and turn.worker is None

    def fail(self, turn: Turn, code: str, message: str, http_status: int = 503) -> None:
        """Tell the frontend that a turn cannot be served, now and if it asks again."""
        assert turn.submit is not None
        failed = TurnFailed(
            turn_id=turn.turn_id, code=code, message=message, http_status=http_status
        )
        self._out.append(FailTurn(turn.submit.frontend_id, failed, turn.submit.request_id))
        self._out.append(CountTurn("failed"))
        self.close(turn, failed=failed)

    def close(
        self, turn: Turn, *, cancelled: bool = False, failed: TurnFailed | None = None
    ) -> None:
        """A turn is over, wherever it is."""
        self._turns.pop(turn.turn_id, None)
        self._stop_waiting(turn)
        if turn.worker is not None:
            self.unassign(turn)
        self.remember(turn.turn_id, Ended(turn.attempt, cancelled, failed))

    def remember(self, turn_id: TurnId, ended: Ended) -> None:
        """This turn is over, whether it was ever known or not."""
        self._ended[turn_id] = ended
        self._ended.move_to_end(turn_id)
        if len(self._ended) > self._limits.ended_max:
            self._ended.popitem(last=False)

    def cancel_attempt(self, worker: Worker, ref: TurnRef) -> None:
        """Tell a worker to stop these attempts of a turn; others of it may run elsewhere."""
        cancel = TurnCancel(turn_id=ref.turn_id, attempt=ref.attempt)
        self._out.append(CancelTurn(worker.worker_id, cancel))

    def _num_to_compute(self, submit: TurnSubmit) -> int:
        """Of its prompt, unless its history is not found."""
        num_history = 0
        if submit.session_id is not None:
            num_history = self._placer.num_history_tokens_of(
                (submit.tenant, submit.session_id), submit.model_id, submit.adapter
            )
        return max(submit.num_prompt_tokens - num_history, 0)

    def _assign(self, turn: Turn, worker: Worker, now_ns: int) -> None:
        assert turn.worker is None
        self._stop_waiting(turn)
        turn.worker = worker
        turn.placed_at_ns = now_ns
        turn.num_placements += 1
        worker.turns[turn.turn_id] = turn
        turn.is_urgent = turn.submit is not None and is_urgent(turn.submit.priority)
        worker.num_urgent += turn.is_urgent

    def _stop_waiting(self, turn: Turn) -> None:
        turn.awaited = None
        if turn.submit is None:
            return
        waiting = self._waiting.get(turn.submit.model_id, {})
        if turn.turn_id in waiting:
            del waiting[turn.turn_id]
            if not waiting:
                del self._waiting[turn.submit.model_id]
