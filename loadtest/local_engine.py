"""The worker's engine in one process: production core, step loop and executor, without a network.

What turns say is put into messages as a worker does; they go nowhere.
"""

import asyncio
import random
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import count

from loadtest.local_store import EPOCH, LocalStore
from services.worker.core.adapters.use import AdapterUse
from services.worker.core.effects import (
    BuildImage,
    CallBack,
    CommitBlocks,
    Effect,
    Emit,
    LeasePages,
    LoadPages,
    ReturnPages,
    StageImage,
    StageTurn,
    StoreBlocks,
)
from services.worker.core.engine.engine import EngineCore
from services.worker.core.kv.pages import PagePool
from services.worker.core.limits import EngineLimits
from services.worker.core.turns.request import TurnRequest
from services.worker.core.turns.turn import Turn
from services.worker.core.turns.turn_cache import TurnCache
from services.worker.device.copying.mover import CalledBack, Loaded, Moved, Stored
from services.worker.device.executor import Executor
from services.worker.device.thread import DeviceThreads
from services.worker.step_loop import StepLoop
from shared.adapters.layout import layout_image
from shared.blocks import root_key
from shared.clock import SystemClock
from shared.dying import die
from shared.ids import DEFAULT_TENANT, FrontendId, TurnId
from shared.messages import AdapterRef, SamplingParams, StepOutput, TurnDelta, encode

FRONTEND = FrontendId("local")


class Moves:
    """Takes a mover's reports to the engine that runs now."""

    def __init__(self) -> None:
        self.engine: LocalEngine | None = None

    def __call__(self, moved: Moved) -> None:
        if self.engine is not None:
            self.engine.on_moved(moved)


@dataclass(slots=True)
class LocalEngine:
    """Runs turns to their ends.

    Attributes:
        thread: launches steps. The model is to be loaded in it as well: OpenMP keeps a team of
            threads for each thread that computes, and two teams are in each other's way.
        store: KV goes there and comes from there.
        moves: what the executor reports to; needed with a store, and for adapters.
        adapters_path: folder with every adapter's files under its hash.
        said: when tokens were given, ns, and how many at once.
    """

    executor: Executor
    thread: ThreadPoolExecutor
    prefill_tokens_max: int
    steps_ahead_max: int = 1
    turns_running_max: int = 64
    store: LocalStore | None = None
    moves: Moves | None = None
    adapters_path: str = ""
    core: EngineCore = field(init=False)
    said: list[tuple[int, int]] = field(default_factory=list)
    _deltas: list[TurnDelta] = field(default_factory=list)
    _names: Iterator[int] = field(default_factory=count)
    _is_over: asyncio.Event = field(default_factory=asyncio.Event)
    _moved: deque[Moved] = field(default_factory=deque)
    _steps: StepLoop | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    def __post_init__(self) -> None:
        info = self.executor.info
        limits = EngineLimits(
            max_model_len=info.max_model_len,
            short_rope_max=info.short_rope_max,
            prefill_tokens_max=self.prefill_tokens_max,
            steps_ahead_max=self.steps_ahead_max,
            turns_running_max=self.turns_running_max,
        )
        pool = PagePool(info.num_pages, info.num_layers)
        self.core = EngineCore(
            limits, pool, info.page_bytes, info.end_token_ids, info.block_tokens, info.fingerprint,
            info.stored_page_bytes,
        )  # fmt: skip
        if self.moves is not None:
            self.moves.engine = self
        if self.store is not None:
            assert self.moves is not None, "nobody would hear what moved"
            self.executor.mover.attach(self.store.arena, EPOCH)
            self.core.writeback.connect(EPOCH)

    def submit(
        self,
        tokens: list[int],
        max_tokens: int,
        adapter: AdapterRef | None = None,
        *,
        grammar: str = "",
    ) -> Turn:
        """A greedy turn that says `max_tokens` tokens, on an adapter or on the base model."""
        info, now_ns = self.executor.info, SystemClock().now_ns()
        num_image_blocks, adapter_hash = 0, ""
        if adapter is not None:
            assert self.moves is not None, "nobody would hear what was built"
            assert info.lora is not None, "the model takes no adapters"
            num_image_blocks = layout_image(info.lora, adapter.ranks).num_blocks
            adapter_hash = adapter.adapter_hash
        request = TurnRequest(
            turn_id=TurnId(str(next(self._names))),
            attempt=1,
            frontend_id=FRONTEND,
            tenant=DEFAULT_TENANT,
            session_id=None,
            sampling=SamplingParams(
                max_tokens=max_tokens, temperature=0.0, ignore_eos=True, grammar=grammar
            ),
            arrived_at_ns=now_ns,
        )
        turn = Turn(
            request,
            TurnCache(
                owner=request.owner,
                tokens=list(tokens),
                block_tokens=info.block_tokens,
                root=root_key(info.fingerprint, "local", adapter_hash),
            ),
            AdapterUse(adapter, num_image_blocks),
        )
        self._perform(self.core.on_turn(turn, now_ns))
        return turn

    def run(self) -> None:
        """Until no turn is left, and what was computed is in the store, or that is full."""
        self._is_over = asyncio.Event()
        asyncio.run(self._run())

    def on_moved(self, moved: Moved) -> None:
        """The mover's report, from one of its threads."""
        self._moved.append(moved)
        with suppress(RuntimeError):  # the loop has ended
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._hear)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        with closing(DeviceThreads(self.thread)) as threads:
            self._steps = StepLoop(
                self.core, SystemClock(), self.executor, threads, self._perform, self._send, die
            )
            self._hear()  # what moved before the loop was there
            async with asyncio.TaskGroup() as group:
                running = group.create_task(self._steps.run())
                await self._is_over.wait()
                running.cancel()

    def _hear(self) -> None:
        while self._moved:
            self._on_moved(self._moved.popleft())

    def _on_moved(self, moved: Moved) -> None:
        match moved:
            case Loaded():
                self.core.estimates.on_load(moved.num_bytes, moved.duration_ns)
                now_ns = SystemClock().now_ns()
                self._perform(self.core.on_loaded(moved.good, moved.bad, now_ns))
            case Stored():
                self._perform(self.core.on_stored(moved.checksums))
            case CalledBack():
                self._perform(self.core.on_called_back(moved.pages))
        assert self._steps is not None
        self._steps.wake()

    def _perform(self, effects: list[Effect]) -> None:
        deltas = [effect.delta for effect in effects if isinstance(effect, Emit)]
        if deltas:
            self.said.append((SystemClock().now_ns(), len(deltas)))
            self._deltas += deltas
        for effect in effects:
            match effect:
                case LoadPages():
                    self.executor.mover.submit_loads(effect.loads)
                case CallBack(pool_pages):
                    self.executor.mover.call_back(pool_pages)
                case StoreBlocks():
                    self.executor.mover.submit_stores(effect.writes, effect.epoch)
                case BuildImage():
                    self.executor.builder.submit(effect, self.adapters_path)
                case StageTurn() | StageImage() | CommitBlocks() | LeasePages() | ReturnPages():
                    self._ask_store(effect)

    def _ask_store(
        self, effect: StageTurn | StageImage | CommitBlocks | LeasePages | ReturnPages
    ) -> None:
        store = self.store
        assert store is not None, "asked a kvstore that is not there"
        match effect:
            case StageTurn():
                now_ns, staged = SystemClock().now_ns(), store.stage(effect.keys)
                self._perform(self.core.on_staged(effect.turn_id, effect.attempt, staged, now_ns))
            case StageImage():
                now_ns, staged = SystemClock().now_ns(), store.stage(effect.keys)
                self._perform(self.core.on_image_staged(effect.number, staged, now_ns))
            case CommitBlocks():
                store.commit(effect.writes)
                self.core.on_committed([write.key for write in effect.writes])
            case LeasePages():
                self.core.on_leased(store.lease(effect.num_pages))
            case ReturnPages():
                store.give_back(effect.arena_pages)

    async def _send(self) -> None:
        if self._deltas:
            encode(StepOutput(deltas=self._deltas))
            self._deltas = []
        writes = self.core.writeback
        has_room = self.store is not None and self.store.has_room
        is_writing = writes.can_go_on or (has_room and writes.num_unwritten)
        if not self.core.is_busy and not is_writing:
            self._is_over.set()


def some_prompt(seed: int, length: int, vocab_size: int) -> list[int]:
    """Tokens from a seed."""
    rng = random.Random(seed)
    return [rng.randrange(vocab_size) for _ in range(length)]
