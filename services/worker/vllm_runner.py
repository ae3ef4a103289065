"""One model's turns on vLLM: hands requests over, sends their tokens, says what is here.

It stands in the place of an `EngineRunner`. vLLM schedules and batches; each turn has a task that
reads its outputs.
"""

import asyncio
from array import array
from dataclasses import replace

from services.worker import metrics
from services.worker.core.adapters.stats import AdapterTimes
from services.worker.core.effects import Effect, Emit, EmitTokens, Ended, Prefetched
from services.worker.core.engine.status import EngineStatus
from services.worker.core.engine_limits import EngineLimits
from services.worker.core.turns.intake import expected_turn, take_in
from services.worker.core.turns.outcome import cancelled_start, ended, error, refuse, refuse_start
from services.worker.core.turns.targets import TargetCounts
from services.worker.core.turns.turn import Turn
from services.worker.core.vllm.forms import form_of
from services.worker.core.vllm.histories import SessionTokens
from services.worker.core.vllm.replies import Output, on_output, with_cached
from services.worker.core.vllm.requests import (
    VllmRequest,
    cache_salt,
    request_args,
    vllm_priority,
)
from services.worker.core.vllm.status import status_of
from services.worker.device.base.executor import shape_of
from services.worker.outbox import EngineListeners, Outbox, note_rejected
from services.worker.vllm.adapters import VllmAdapters
from services.worker.vllm.protocol import EngineGone, VllmEngine
from services.worker.vllm_hints import VllmHints
from services.worker.vllm_kv import VllmKv
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
    encode,
)


class VllmRunner:
    """Args:
    limits: of turns, and the target of those that have none.
    kv: keeps KV beyond vLLM's cache; None: nothing does.
    """

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        engine: VllmEngine,
        limits: EngineLimits,
        listeners: EngineListeners,
        kv: VllmKv | None = None,
    ) -> None:
        self._kv = kv
        self._hints: VllmHints | None = None
        if kv is not None:
            self._hints = VllmHints(engine, kv, clock, self._has_waiting, self._send)
        self._adapters = VllmAdapters(engine, clock, self._adapters_path, self._bring_adapter)
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
        num_failures = 0 if self._kv is None else self._kv.num_load_failures
        adapters = self._adapters.status(turns)
        return status_of(
            self.info, turns, self._engine.counts, self._targets, adapters, num_failures
        )

    def speeds(self) -> ModelSpeeds:
        """How fast KV comes; how fast the engine computes, vLLM does not say."""
        speeds = ModelSpeeds(
            model_id=ModelId(self.info.model_id),
            block_bytes=self.info.page_bytes * self.info.num_layers,
        )
        if (kv := self._kv) is None:
            return speeds
        return replace(
            speeds,
            load_bytes_per_s=kv.estimates.load_bytes_per_s,
            source_bytes_per_s=kv.estimates.source_bytes_per_s,
            peer_bytes_per_s=dict(kv.estimates.peer_bytes_per_s),
        )

    def take_adapter_times(self) -> AdapterTimes:
        """See `AdapterStats.take`."""
        return self._adapters.stats.take()

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
        if self._kv is not None and start.adapter is not None:
            self._kv.kv.count_use(start.adapter)
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
            images=prompt.images,
            form=form_of(turn),
        )
        self._tasks.spawn(self._read(turn, request))

    async def _read(self, turn: Turn, request: VllmRequest) -> None:
        """Pass a request's tokens on until it is over."""
        try:
            async with self._adapters.held(turn.adapter, lambda: self._has(turn)) as adapter:
                await self._pass_on(turn, replace(request, adapter=adapter))
        except EngineGone as gone:
            self._listeners.on_stuck(gone.message)
        except SymphonyError as flaw:
            if self._has(turn):
                self._end(turn, [error(turn, flaw.code, flaw.message), ended(turn, "error")])
        finally:
            if self._kv is not None:
                self._kv.end(request.request_id)
            self._remember(turn, request.salt)

    async def _pass_on(self, turn: Turn, request: VllmRequest) -> None:
        # Blocks are known by tokens, which different images have in common.
        if self._kv is not None and not request.images and self._has(turn):
            kv = await self._kv.stage(turn, request.request_id)
            request = replace(request, kv=encode(kv).decode())
        if self._hints is not None:  # what was held for it is held for the turn itself now
            for owner in turn.request.announcements:
                self._hints.withdraw(owner)
        if not self._has(turn):
            return  # it was cancelled before vLLM knew of it
        async for output in self._engine.generate(request):
            if not self._has(turn) or self._take(turn, output):
                return

    def _remember(self, turn: Turn, salt: str) -> None:
        """What its session's next turn begins with."""
        cache = turn.cache
        if self._hints is None or turn.request.session_id is None or cache.is_private:
            return
        if turn.adapter.ref is not None:
            return  # what loads it into vLLM's cache runs on the base
        tokens = array("i", turn.tokens[: cache.num_kept or None])
        session = SessionTokens(tokens, salt, cache.root.hex())
        self._hints.histories.set(cache.owner, session)

    def _take(self, turn: Turn, output: Output) -> bool:
        """A step's output of a turn; whether it was the last."""
        now_ns = self._clock.now_ns()
        had_none = turn.trace.first_token_at_ns is None
        if had_none and self._kv is not None:
            cached = self._kv.take_cached(_request_id(turn))
            output = with_cached(turn, output, cached)
        is_over, effects = on_output(turn, output, now_ns)
        if had_none and turn.trace.first_token_at_ns is not None:
            target_ns = turn.targets.slo_ttft_ns
            own_ns = self._limits.slo_ttft_ns if target_ns is None else target_ns
            self._targets.on_first_token(turn, own_ns, now_ns)
            self._adapters.on_first_token(turn, now_ns)
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
        if self._kv is not None and cancel.num_kept:
            turn.cache.num_kept = cancel.num_kept
            self._kv.cut(_request_id(turn), cancel.num_kept)
        self._end(turn, [ended(turn, "cancelled")])

    def on_prefetch(self, prefetch: Prefetch, prompt: Prompt | None = None) -> None:
        """A session's turn was announced. Turns that run do not move to vLLM."""
        if self._hints is None or prompt is not None:
            return
        try:
            expected = expected_turn(prefetch, self._shape, self._clock.now_ns())
        except SymphonyError as flaw:
            metrics.REJECTED.labels("prefetch", flaw.code).inc()
            return
        self._hints.on_announced(expected)
        if expected.adapter is not None:
            self._adapters.expect(expected.adapter)

    def on_prefetch_drop(self, owner: OwnerKey) -> None:
        """The announcement was withdrawn."""
        if self._hints is not None:
            self._hints.withdraw(owner)

    async def forget(self, owner: OwnerKey, keys: list[BlockKey]) -> bool:
        """A session was deleted; see `VllmKv.forget`. Whether a turn of it is here.

        Raises:
            PeerUnavailable: the kvstore has not answered an earlier commit yet.
        """
        turns = [turn for turn in self._turns.values() if turn.request.owner == owner]
        for turn in turns:
            turn.cache.is_private = True
        if self._hints is not None:
            self._hints.forget(owner)
        if self._kv is not None:
            await self._kv.forget(owner, keys)
        return bool(turns)

    async def run(self) -> None:
        """Send what turns say, and prefetch, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_all())
            if self._hints is not None:
                group.create_task(self._hints.run())

    async def _send_all(self) -> None:
        while True:
            await self._has_unsent.wait()
            self._has_unsent.clear()
            await self._outbox.flush()

    async def drain(self) -> None:
        """Wait until no turn is left."""
        await self._is_empty.wait()
        await self._outbox.flush()
        await self._outbox.drain()
        if self._kv is not None:
            await self._kv.drain()

    def close(self) -> None:
        """End vLLM."""
        self._engine.close()

    def _adapters_path(self) -> str:
        """The kvstore says it when it is connected."""
        return "" if self._kv is None else self._kv.kv.adapters_path

    async def _bring_adapter(self, adapter_hash: str) -> None:
        if self._kv is not None:
            await self._kv.kv.bring_adapter(adapter_hash)

    def _has_waiting(self) -> bool:
        """Whether a turn has no token yet."""
        return any(turn.trace.first_token_at_ns is None for turn in self._turns.values())

    def _has(self, turn: Turn) -> bool:
        """Whether this attempt goes on."""
        return self._turns.get(turn.request.turn_id) is turn

    def _end(self, turn: Turn, effects: list[Effect]) -> None:
        self._remove(turn)
        self._tasks.spawn(self._engine.abort(_request_id(turn)))
        self._send(effects)

    def _remove(self, turn: Turn) -> None:
        del self._turns[turn.request.turn_id]
        self._adapters.wake()  # it may be one that waits
        if not self._turns:
            self._is_empty.set()

    def _send(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case EmitTokens() | Emit() | Ended():
                    self._outbox.add(effect)
                case Prefetched():
                    self._listeners.on_prefetched(effect)
        self._has_unsent.set()


def _request_id(turn: Turn) -> str:
    """By which vLLM knows an attempt."""
    return f"{turn.request.turn_id}/{turn.request.attempt}"
