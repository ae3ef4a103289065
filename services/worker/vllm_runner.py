"""One model's turns on vLLM: hands requests over, sends their tokens, says what is here.

It stands in the place of an `EngineRunner`. vLLM schedules and batches; each turn has a task that
reads its outputs.
"""

import asyncio

from services.worker.core.adapters.stats import AdapterTimes
from services.worker.core.effects import Effect, Emit, EmitTokens, Ended
from services.worker.core.engine.status import EngineStatus
from services.worker.core.engine_limits import EngineLimits
from services.worker.core.turns.intake import take_in
from services.worker.core.turns.outcome import cancelled_start, ended, error, refuse, refuse_start
from services.worker.core.turns.targets import TargetCounts
from services.worker.core.turns.turn import Turn
from services.worker.core.vllm.replies import Output, on_output
from services.worker.core.vllm.requests import (
    VllmRequest,
    cache_salt,
    request_args,
    vllm_priority,
)
from services.worker.core.vllm.status import status_of
from services.worker.device.base.executor import shape_of
from services.worker.outbox import EngineListeners, Outbox, note_rejected
from services.worker.vllm.protocol import EngineGone, VllmEngine
from shared.blocks import BlockKey
from shared.bus import Bus
from shared.errors import SymphonyError
from shared.ids import ModelId, TurnId
from shared.owners import OwnerKey
from shared.runtime.clock import Clock
from shared.runtime.tasks import Tasks
from shared.wire.messages import (
    ModelSpeeds,
    Prefetch,
    Prompt,
    TurnCancel,
    TurnRef,
    TurnStart,
)


class VllmRunner:
    """Args:
    limits: of turns, and the target of those that have none.
    """

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        engine: VllmEngine,
        limits: EngineLimits,
        listeners: EngineListeners,
    ) -> None:
        self.info = engine.info
        self._clock = clock
        self._engine = engine
        self._limits = limits
        self._listeners = listeners
        self._outbox = Outbox(bus, listeners)
        self._has_unsent = asyncio.Event()
        self._targets = TargetCounts()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._shape = shape_of(engine.info)
        self._turns: dict[TurnId, Turn] = {}
        self._tasks = Tasks("a request to vLLM failed")

    @property
    def num_turns(self) -> int:
        """Turns held here."""
        return len(self._turns)

    def refs(self) -> list[TurnRef]:
        """Every attempt held here."""
        return [turn.ref() for turn in self._turns.values()]

    def status(self) -> EngineStatus:
        """A snapshot, for reports and metrics."""
        turns = list(self._turns.values())
        return status_of(self.info, turns, self._engine.counts, self._targets)

    def speeds(self) -> ModelSpeeds:
        """How fast the engine is: vLLM does not say."""
        return ModelSpeeds(
            model_id=ModelId(self.info.model_id),
            block_bytes=self.info.page_bytes * self.info.num_layers,
        )

    def take_adapter_times(self) -> AdapterTimes:
        """It has no adapters."""
        return AdapterTimes([], [])

    def on_prompt(self, start: TurnStart, prompt: Prompt | None) -> None:
        """A turn's prompt has come, or will not come. A later attempt replaces an earlier one."""
        if prompt is None or prompt.gone:
            self._send([cancelled_start(start)])
            return
        now_ns = self._clock.now_ns()
        try:
            turn = take_in(start, prompt, self._shape, now_ns)
            args = request_args(turn, self.info)
        except SymphonyError as flaw:  # the fault of the frontend that sent it: no other turn's
            note_rejected(start, flaw)
            self.refuse(start, flaw)
            return
        if (old := self._turns.get(start.turn_id)) is not None:
            if old.request.attempt >= start.attempt:
                return
            self._end(old, [ended(old, "cancelled")])
        limits = self._limits
        if self.num_turns >= limits.turns_running_max + limits.turns_waiting_max:
            self._send(refuse(turn, "overloaded", "too many turns wait on this worker"))
            return
        self._turns[start.turn_id] = turn
        self._is_empty.clear()
        salt = cache_salt(
            start.tenant, prompt.cache_salt, start.turn_id if prompt.is_private else ""
        )
        request = VllmRequest(
            request_id=_request_id(turn),
            tokens=list(turn.tokens),
            args=args,
            salt=salt,
            priority=vllm_priority(start.priority),
        )
        self._tasks.spawn(self._read(turn, request))

    async def _read(self, turn: Turn, request: VllmRequest) -> None:
        """Pass a request's tokens on until it is over."""
        if not self._has(turn):
            return  # it was cancelled before vLLM knew of it
        try:
            async for output in self._engine.generate(request):
                if not self._has(turn) or self._take(turn, output):
                    return
        except EngineGone as gone:
            self._listeners.on_stuck(gone.message)
        except SymphonyError as flaw:
            if self._has(turn):
                self._end(turn, [error(turn, flaw.code, flaw.message), ended(turn, "error")])

    def _take(self, turn: Turn, output: Output) -> bool:
        """A step's output of a turn; whether it was the last."""
        now_ns = self._clock.now_ns()
        had_none = turn.trace.first_token_at_ns is None
        is_over, effects = on_output(turn, output, now_ns)
        if had_none and turn.trace.first_token_at_ns is not None:
            target_ns = turn.targets.slo_ttft_ns
            own_ns = self._limits.slo_ttft_ns if target_ns is None else target_ns
            self._targets.on_first_token(turn, own_ns, now_ns)
            if turn.request.was_lost:
                self._listeners.on_progress()
        if is_over:
            self._targets.on_last_token(turn, now_ns)
            self._remove(turn)
        self._send(effects)
        return is_over

    def refuse(self, start: TurnStart, error: SymphonyError) -> None:
        """Answer a turn that is not taken."""
        self._send(refuse_start(start, error))

    def on_cancel(self, cancel: TurnCancel) -> None:
        """A turn is not wanted any more, or this attempt at it."""
        turn = self._turns.get(cancel.turn_id)
        if turn is None or (cancel.attempt and turn.request.attempt > cancel.attempt):
            return
        self._end(turn, [ended(turn, "cancelled")])

    def on_prefetch(self, prefetch: Prefetch) -> None:
        """A session's turn was announced."""

    def on_prefetch_drop(self, owner: OwnerKey) -> None:
        """The announcement was withdrawn."""

    async def forget(self, owner: OwnerKey, keys: list[BlockKey]) -> bool:
        """A session was deleted."""
        return any(turn.request.owner == owner for turn in self._turns.values())

    async def run(self) -> None:
        """Send what turns say, for ever."""
        while True:
            await self._has_unsent.wait()
            self._has_unsent.clear()
            await self._outbox.flush()

    async def drain(self) -> None:
        """Wait until no turn is left."""
        await self._is_empty.wait()
        await self._outbox.flush()
        await self._outbox.drain()

    def close(self) -> None:
        """End vLLM."""
        self._engine.close()

    def _has(self, turn: Turn) -> bool:
        """Whether this attempt goes on."""
        return self._turns.get(turn.request.turn_id) is turn

    def _end(self, turn: Turn, effects: list[Effect]) -> None:
        self._remove(turn)
        self._tasks.spawn(self._engine.abort(_request_id(turn)))
        self._send(effects)

    def _remove(self, turn: Turn) -> None:
        del self._turns[turn.request.turn_id]
        if not self._turns:
            self._is_empty.set()

    def _send(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case EmitTokens() | Emit() | Ended():
                    self._outbox.add(effect)
        self._has_unsent.set()


def _request_id(turn: Turn) -> str:
    """By which vLLM knows an attempt."""
    return f"{turn.request.turn_id}/{turn.request.attempt}"
