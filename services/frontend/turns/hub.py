"""The shell of `core.turns`: bus messages in, effects out, events of turns to their mailboxes."""

import asyncio
from functools import partial
from typing import Protocol

from services.frontend.core.turns.turns import (
    AnswerPull,
    AskScheduler,
    Cancel,
    Deliver,
    Effect,
    Fail,
    NewTurn,
    Start,
    Submit,
    Turns,
)
from services.frontend.turns.outbox import Outbox, Submits
from shared.bus import Bus
from shared.errors import NoCapacity
from shared.groups import in_groups
from shared.ids import FrontendId, TurnId
from shared.runtime.clock import Clock
from shared.service import Runtime
from shared.wire.messages import (
    AgentTurnLeft,
    Empty,
    PromptPull,
    PromptReply,
    SessionPlaced,
    StepOutput,
    TurnFailed,
    TurnsStart,
    TurnsSubmit,
    TurnSubmit,
)
from shared.wire.shards import by_shard, turn_shard
from shared.wire.subjects import (
    PROMPT_PULL,
    SCHEDULER_PING,
    SESSION_PLACED,
    STEP_OUTPUT,
    TURN_CANCEL,
    TURN_FAILED,
    TURN_SUBMIT,
    WORKER_START,
)
from shared.wire.tracker_shards import left_wire

TICK_S = 0.25
STOP_S = 1.0
SUBMITS_MAX = 16_384  # several for each of the choices at once
SUBMIT_BYTES = 1024  # of one besides its prompt, more or less
SUBMITS_BYTES_MAX = 128 * 1024  # of those in one message, so that reading it takes little time
UNREAD_MAX = 65_536  # tokens and their log-probabilities, of one request


class ClientGone(Exception):
    """The client hung up or was hung up on: there is no reader for the answer."""


class TurnError(NoCapacity):
    """A turn could not be served."""

    def __init__(self, failure: TurnFailed) -> None:
        super().__init__(failure.message, failure.retry_after_s)
        self.code = failure.code
        self.http_status = failure.http_status


class Reader(Protocol):
    """The connection that is sent the answer while it is made."""

    @property
    def is_behind(self) -> bool:
        """Whether data waits because the client does not read."""
        ...

    def hang_up(self, reason: str) -> None:
        """End the connection at once."""
        ...


class Mailbox:
    """Events of one request's turns, waited for in one place however many turns there are.

    Attributes:
        reader: hung up on if it leaves more than `UNREAD_MAX` unread; None: nothing to hang up on.
    """

    __slots__ = ("_events", "_is_abandoned", "_num_unread", "_waiter", "reader")

    def __init__(self) -> None:
        self.reader: Reader | None = None
        self._events: list[tuple[int, Deliver | Fail]] = []
        self._num_unread = 0
        self._waiter: asyncio.Future[None] | None = None
        self._is_abandoned = False

    def put(self, index: int, event: Deliver | Fail) -> None:
        """Add an event of the request's turn number `index`."""
        if self._is_abandoned:
            return
        self._events.append((index, event))
        if isinstance(event, Deliver):
            self._num_unread += event.num_entries
            # Otherwise events wait because this process is busy, not because of the reader.
            if self._num_unread > UNREAD_MAX and self.reader is not None and self.reader.is_behind:
                self.reader.hang_up("unread")
                self.abandon()
                return
        self._wake()

    def abandon(self) -> None:
        """The client hung up, or was hung up on."""
        self._is_abandoned = True
        self._events = []
        self._wake()

    async def take(self) -> list[tuple[int, Deliver | Fail]]:
        """Wait for events; returns all that came since the last call, in order.

        Raises:
            ClientGone: the client is gone.
        """
        while not self._events and not self._is_abandoned:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._is_abandoned:
            raise ClientGone
        events, self._events, self._num_unread = self._events, [], 0
        return events

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Hub:
    """Every turn in flight, on the bus.

    Args:
        num_shards: schedulers among which turns are divided.
        num_tracker_shards: among which the tracker is divided.
    """

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        frontend_id: FrontendId,
        turns: Turns,
        *,
        num_shards: int = 1,
        num_tracker_shards: int = 1,
    ) -> None:
        self._bus = bus
        self._num_shards = num_shards
        self._clock = clock
        self._frontend_id = frontend_id
        self._turns = turns
        self._num_tracker_shards = num_tracker_shards
        self._boxes: dict[TurnId, tuple[Mailbox, int]] = {}
        self._outbox = Outbox(SUBMITS_MAX)
        self._submits = Submits(self._outbox, self._submit, SUBMITS_MAX)
        self._asked = asyncio.Event()

    async def start(self, runtime: Runtime) -> None:
        """Subscribe, and start the tasks that run until the service ends."""
        await self._bus.serve(PROMPT_PULL, self._on_pull, self._frontend_id)
        await self._bus.subscribe(STEP_OUTPUT, self._on_step, self._frontend_id)
        await self._bus.subscribe(SESSION_PLACED, self._on_placed)
        await self._bus.subscribe(TURN_FAILED, self._on_failed, self._frontend_id)
        self._bus.on_reconnect(
            lambda: self._perform(self._turns.on_reconnect(self._clock.now_ns()))
        )
        runtime.spawn(self._outbox.run(), "turn outbox")
        runtime.spawn(self._watch(), "turn watchdog")
        runtime.spawn(self._ask_scheduler(), "scheduler probe")

    def open(self, new: NewTurn, mailbox: Mailbox, index: int) -> None:
        """Start a turn whose events go to `mailbox` as number `index`."""
        self._boxes[new.turn_id] = (mailbox, index)
        self._perform(self._turns.on_new(new, self._clock.now_ns()))

    def cancel(self, turn_id: TurnId, num_kept: int = 0) -> None:
        """No more of this turn is wanted: the client is gone, or a stop string ended the reply.
        One that ended is ignored.

        Args:
            num_kept: as of `TurnCancel`.
        """
        self._boxes.pop(turn_id, None)
        self._perform(self._turns.on_cancel(turn_id, num_kept))

    def tell(self, left: AgentTurnLeft) -> None:
        """An agent's turn is over."""
        wire, ids = left_wire(left, self._num_tracker_shards)
        self._outbox.put("left", partial(self._bus.publish, wire, left, *ids))

    async def stop(self) -> None:
        """End every turn that is still open with an error, and send what waits to be sent."""
        self._perform(self._turns.on_stop())
        await self._outbox.flush(STOP_S)

    async def _on_pull(self, pull: PromptPull) -> PromptReply:
        answer, *effects = self._turns.on_pull(
            pull, self._clock.now_ns(), self._bus.payload_bytes_max
        )
        assert isinstance(answer, AnswerPull)
        self._perform(effects)
        return answer.message

    def _on_step(self, step: StepOutput) -> None:
        now_ns = self._clock.now_ns()
        for delta in step.deltas:
            self._perform(self._turns.on_delta(delta, now_ns))
        for token in step.tokens:
            self._perform(self._turns.on_token(token, now_ns))

    def _on_placed(self, placed: SessionPlaced) -> None:
        self._turns.on_placed(placed, self._clock.now_ns())

    def _on_failed(self, failure: TurnFailed) -> None:
        self._perform(self._turns.on_failed(failure))

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Deliver() | Fail():
                    self._hand_over(effect)
                case Submit(message):
                    self._submits.put(message)
                case Start(worker_id, start):
                    send = partial(
                        self._bus.publish, WORKER_START, TurnsStart(turns=[start]), worker_id
                    )
                    self._outbox.put("submit", send)
                case Cancel(message):
                    shard = str(turn_shard(message.turn_id, self._num_shards))
                    send = partial(self._bus.publish, TURN_CANCEL, message, shard)
                    self._outbox.put("cancel", send)
                case AskScheduler():
                    self._asked.set()

    async def _submit(self, submits: list[TurnSubmit]) -> None:
        room = min(self._bus.payload_bytes_max // 2, SUBMITS_BYTES_MAX)
        for shard, its in by_shard(submits, self._num_shards).items():
            for turns in in_groups(its, lambda s: SUBMIT_BYTES + len(s.prompt), room):
                await self._bus.publish(TURN_SUBMIT, TurnsSubmit(turns=turns), str(shard))

    def _hand_over(self, event: Deliver | Fail) -> None:
        is_last = isinstance(event, Fail) or event.finish is not None
        boxes = self._boxes
        found = boxes.pop(event.turn_id, None) if is_last else boxes.get(event.turn_id)
        assert found is not None, f"an event of {event.turn_id}, which was not opened"
        mailbox, index = found
        mailbox.put(index, event)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._perform(self._turns.on_tick(self._clock.now_ns()))

    async def _ask_scheduler(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            # A shard that is away keeps its turns, so all shards must answer.
            shards = range(self._num_shards)
            there = [self._bus.has_responder(SCHEDULER_PING, Empty(), str(i)) for i in shards]
            if all(await asyncio.gather(*there)):
                self._turns.on_scheduler_seen(self._clock.now_ns())
