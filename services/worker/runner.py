"""One model's engine: feeds the core, runs its steps, performs its effects."""

import asyncio
import logging
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace

from services.worker import metrics
from services.worker.core.adapters.stats import AdapterTimes
from services.worker.core.effects import (
    BuildImage,
    CallBack,
    CommitBlocks,
    Effect,
    Emit,
    EmitTokens,
    Ended,
    LeasePages,
    LoadPages,
    Prefetched,
    ReleaseTicket,
    ReportSoon,
    ReturnPages,
    StageImage,
    StageSession,
    StageTurn,
    StoreBlocks,
    TrimTicket,
)
from services.worker.core.engine.engine import EngineCore
from services.worker.core.engine.integrity import check_integrity
from services.worker.core.engine.landing import GRAMMAR_FAILED
from services.worker.core.engine.status import EngineStatus, status_of
from services.worker.core.turns.intake import expected_turn, take_in
from services.worker.core.turns.outcome import cancelled_start, refuse_start
from services.worker.device.base.executor import Executor, shape_of
from services.worker.device.copying.mover import CalledBack, Loaded, Moved, Stored
from services.worker.device.thread import DeviceThread
from services.worker.kv_client import KvClient
from services.worker.outbox import EngineListeners, Outbox, note_rejected
from services.worker.step_loop import StepLoop
from shared.arena import Arena
from shared.blocks import BlockKey
from shared.bus import Bus
from shared.errors import InvalidRequest, PeerUnavailable, SymphonyError
from shared.ids import TurnId
from shared.owners import OwnerKey, owner_key
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

log = logging.getLogger(__name__)

COMMITS_PATIENCE_S = 5.0
CHECK_EVERY_S = 60.0
GRAMMAR_PATIENCE_S = 10.0


@dataclass(slots=True)
class _Preparing:
    """A turn whose grammar is being compiled."""

    start: TurnStart
    prompt: Prompt


class EngineRunner:
    """Drives one `EngineCore` from the event loop; the forward pass runs in `thread`.

    The core is only touched here, in the event loop, by calls that do not await.
    """

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        core: EngineCore,
        executor: Executor,
        kv: KvClient,
        thread: DeviceThread,
        listeners: EngineListeners,
    ) -> None:
        self.core = core
        self.executor = executor
        self._bus = bus
        self._clock = clock
        self._kv = kv
        self._listeners = listeners
        self.info = executor.info
        self._shape = shape_of(executor.info)
        self._outbox = Outbox(bus, listeners)
        self._steps = StepLoop(
            core, clock, executor, thread, self._perform, self._outbox.flush, listeners.on_stuck
        )
        self._preparing: dict[TurnId, _Preparing] = {}
        self._tasks = Tasks("performing an effect failed")
        self._commits = Tasks("committing blocks failed")

    @property
    def num_turns(self) -> int:
        """Turns held here."""
        return self.core.num_turns + len(self._preparing)

    def refs(self) -> list[TurnRef]:
        """Every attempt held here."""
        starts = [preparing.start for preparing in self._preparing.values()]
        coming = [TurnRef(turn_id=start.turn_id, attempt=start.attempt) for start in starts]
        return self.core.refs() + coming

    def status(self) -> EngineStatus:
        """A snapshot of the engine, for reports and metrics."""
        return status_of(self.core)

    def speeds(self) -> ModelSpeeds:
        """How fast the engine is."""
        return self.core.speeds(self.info.model_id)

    def take_adapter_times(self) -> AdapterTimes:
        """See `EngineCore.take_adapter_times`."""
        return self.core.take_adapter_times()

    # Events.

    def on_prompt(self, start: TurnStart, prompt: Prompt | None) -> None:
        """A turn's prompt has come, or will not come."""
        if prompt is None or prompt.gone:
            self._react([cancelled_start(start)])
            return
        if prompt.sampling.grammar:
            self._begin_preparing(_Preparing(start, prompt))
        else:
            self._take_in(start, prompt)

    def _begin_preparing(self, preparing: "_Preparing") -> None:
        """As of turns in the engine, a later attempt replaces an earlier one."""
        start = preparing.start
        if (old := self._preparing.get(start.turn_id)) is not None:
            if old.start.attempt >= start.attempt:
                return
            self._react([cancelled_start(old.start)])
        self._preparing[start.turn_id] = preparing
        self._tasks.spawn(self._prepare(preparing))

    def _take_in(self, start: TurnStart, prompt: Prompt) -> None:
        now_ns = self._clock.now_ns()
        try:
            turn = take_in(start, prompt, self._shape, now_ns)
        except SymphonyError as error:  # the fault of the frontend that sent it: no other turn's
            self._reject(start, error)
        else:
            if start.adapter is not None:
                self._kv.count_use(start.adapter)
            self._react(self.core.on_turn(turn, now_ns))

    async def _prepare(self, preparing: "_Preparing") -> None:
        """Compile a turn's grammar before a step may have to wait for it."""
        why, start = "it takes too long to compile", preparing.start
        with suppress(TimeoutError):
            compiled = asyncio.wrap_future(self._compile(preparing.prompt))
            why = await asyncio.wait_for(compiled, GRAMMAR_PATIENCE_S)
        if self._preparing.get(start.turn_id) is not preparing:
            return  # it was cancelled, or a later attempt is here
        del self._preparing[start.turn_id]
        if why:
            self._reject(start, InvalidRequest(f"grammar: {why}", code=GRAMMAR_FAILED))
        else:
            self._take_in(start, preparing.prompt)

    def _compile(self, prompt: Prompt) -> "Future[str]":
        sampling = prompt.sampling
        has_open_keys = bool(sampling.json_after)
        return self.executor.grammars.prepare(sampling.grammar, has_open_keys=has_open_keys)

    def _reject(self, start: TurnStart, error: SymphonyError) -> None:
        note_rejected(start, error)
        self.refuse(start, error)

    def refuse(self, start: TurnStart, error: SymphonyError) -> None:
        """Answer a turn that is not taken."""
        self._react(refuse_start(start, error))

    def on_cancel(self, cancel: TurnCancel) -> None:
        """A turn is not wanted any more, or this attempt at it."""
        preparing = self._preparing.get(cancel.turn_id)
        if preparing is not None and not 0 < cancel.attempt < preparing.start.attempt:
            del self._preparing[cancel.turn_id]
            self._react([cancelled_start(preparing.start)])
        self._react(self.core.on_cancel(cancel.turn_id, cancel.attempt, cancel.num_kept))

    def on_prefetch(self, prefetch: Prefetch, prompt: Prompt | None = None) -> None:
        """A session's turn was announced; with its prompt, if it runs elsewhere."""
        try:
            expected = expected_turn(prefetch, self._shape, self._clock.now_ns(), prompt)
        except SymphonyError as error:
            metrics.REJECTED.labels("prefetch", error.code).inc()
            return
        if prompt is not None and prompt.sampling.grammar:
            self._compile(prompt)
        self._react(self.core.on_expected(expected, self._clock.now_ns()))

    def on_prefetch_drop(self, owner: OwnerKey) -> None:
        """The announcement was withdrawn."""
        self._react(self.core.on_unexpected(owner))

    async def forget(self, owner: OwnerKey, keys: list[BlockKey]) -> bool:
        """A session was deleted. Returns once no block of it is here or in flight to the kvstore.

        Returns:
            Whether one was, or a turn of it is held here.

        Raises:
            PeerUnavailable: the kvstore has not answered an earlier commit yet.
        """
        for preparing in self._preparing.values():
            if owner_key(preparing.start.tenant, preparing.start.session_id) == owner:
                preparing.prompt = replace(preparing.prompt, is_private=True)
        has_turn = self.core.has_turn_of(owner)
        num_blocks, effects = self.core.on_forget(owner, keys)
        self._react(effects)
        if not await self._commits.wait(COMMITS_PATIENCE_S):
            raise PeerUnavailable("the kvstore has not answered a commit yet")
        return has_turn or num_blocks > 0

    def on_moved(self, moved: Moved) -> None:
        """The mover's report (called in the event loop)."""
        match moved:
            case Loaded():
                self.core.on_load_measured(moved.num_bytes, moved.duration_ns)
                self._react(self.core.on_loaded(moved.good, moved.bad, self._clock.now_ns()))
            case Stored():
                self._react(self.core.on_stored(moved.checksums))
            case CalledBack():
                self._react(self.core.on_called_back(moved.pages))

    def on_kv_connected(self, arena: Arena, epoch: int) -> None:
        """A connection to the kvstore was opened."""
        self.executor.mover.attach(arena, epoch)
        self.core.on_kv_connected(epoch)
        self._steps.wake()

    def on_kv_disconnected(self) -> None:
        """The kvstore is away: nothing waits for it."""
        self.core.on_kv_disconnected()
        self._steps.wake()

    # The loop.

    async def run(self) -> None:
        """Step for ever."""
        await self._steps.run()

    async def check_for_ever(self) -> None:
        """Now and then, while there is nothing else to do, see that everything adds up.

        Raises:
            AssertionError: it does not.
        """
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            if not self.core.is_busy:
                check_integrity(self.core)

    async def drain(self) -> None:
        """Wait until no turn is left and everything written is below."""
        while self._is_busy:
            await self._steps.wait_idle()
        await self._outbox.drain()

    @property
    def _is_busy(self) -> bool:
        if self.core.is_busy or self._preparing:
            return True
        return self._kv.is_connected and self.core.has_unwritten

    # Effects.

    def _react(self, effects: list[Effect]) -> None:
        """Perform what an event led to; the loop is to look again."""
        self._perform(effects)
        self._steps.wake()

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case EmitTokens() | Emit() | Ended():
                    self._outbox.add(effect)
                case Prefetched():
                    self._listeners.on_prefetched(effect)
                case LoadPages():
                    self.executor.mover.submit_loads(effect.loads)
                case CallBack(pool_pages):
                    self.executor.mover.call_back(pool_pages)
                case StageTurn():
                    self._tasks.spawn(self._stage_turn(effect))
                case StageImage():
                    self._tasks.spawn(self._stage_image(effect))
                case BuildImage():
                    self._build(effect)
                case StoreBlocks():
                    self.executor.mover.submit_stores(effect.writes, effect.epoch)
                case CommitBlocks():
                    self._commits.spawn(self._commit(effect))
                case LeasePages():
                    self._tasks.spawn(self._lease(effect.num_pages))
                case ReleaseTicket():
                    self._tasks.spawn(self._kv.release(ticket=effect.ticket))
                case TrimTicket(ticket, num_blocks):
                    self._tasks.spawn(self._kv.release(ticket=ticket, num_kept=num_blocks))
                case ReturnPages():
                    self._tasks.spawn(self._kv.release(pages=effect.arena_pages))
                case ReportSoon():
                    self._listeners.on_progress()
                case StageSession():
                    self._tasks.spawn(self._stage_session(effect))

    async def _stage_turn(self, effect: StageTurn) -> None:
        staged = await self._kv.stage_turn(effect)
        now_ns = self._clock.now_ns()
        self._react(self.core.on_staged(effect.turn_id, effect.attempt, staged, now_ns))

    async def _stage_image(self, effect: StageImage) -> None:
        staged = await self._kv.stage_image(effect)
        self._react(self.core.on_image_staged(effect.number, staged, self._clock.now_ns()))

    def _build(self, effect: BuildImage) -> None:
        if self._kv.has_adapter(effect.adapter.adapter_hash):
            self.executor.builder.submit(effect, self._kv.adapters_path)
        else:
            self._tasks.spawn(self._fetch_and_build(effect))

    async def _fetch_and_build(self, effect: BuildImage) -> None:
        await self._kv.bring_adapter(effect.adapter.adapter_hash)
        self.executor.builder.submit(effect, self._kv.adapters_path)

    async def _stage_session(self, effect: StageSession) -> None:
        staged = await self._kv.stage_session(effect)
        self._react(self.core.on_session_staged(effect.number, staged, self._clock.now_ns()))

    async def _commit(self, effect: CommitBlocks) -> None:
        async for keys, is_there in self._kv.commit(effect.writes, effect.checksums):
            if is_there:
                self.core.on_committed(keys)
            else:
                self.core.on_refused(keys)
        self._steps.wake()

    async def _lease(self, num_pages: int) -> None:
        pages = await self._kv.lease(num_pages)
        if pages is None:
            return  # of an earlier connection: the core has dropped the request
        self.core.on_leased(pages)
        if pages:
            self._steps.wake()
