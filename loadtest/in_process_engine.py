"""The worker's engine in one process: the production runner and executor, without a network.

What turns generate is encoded as a worker does and sent nowhere; a `LocalStore` may stand in for
the kvstore.
"""

import asyncio
import random
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast

from loadtest.local_store import EPOCH, LocalStore
from services.worker.core.effects import BlockWrite, StageTurn
from services.worker.core.engine.engine import EngineCore
from services.worker.core.engine_limits import EngineLimits
from services.worker.core.kv.pages import PagePool
from services.worker.core.kv.staged import Staged
from services.worker.core.turns.turn import Turn
from services.worker.device.base.executor import Executor
from services.worker.device.copying.mover import Moved
from services.worker.device.thread import DeviceThreads
from services.worker.kv_client import KvClient
from services.worker.runner import EngineListeners, EngineRunner
from shared.blocks import BlockKey
from shared.bus import Bus
from shared.ids import FrontendId, ModelId, TurnId
from shared.runtime.clock import SystemClock
from shared.wire.messages import (
    AdapterRef,
    Prompt,
    SamplingParams,
    StepOutput,
    TurnStart,
    encode,
    pack_ints,
)

PAYLOAD_BYTES_MAX = 1 << 20  # as NATS has it
FRONTEND = FrontendId("local")


class Moves:
    """Passes a mover's reports to the engine that runs now."""

    def __init__(self) -> None:
        self.engine: InProcessEngine | None = None

    def __call__(self, moved: Moved) -> None:
        if self.engine is not None:
            self.engine.on_moved(moved)


@dataclass(slots=True)
class Submitted:
    """A turn that was submitted, and what became of it once the engine has run."""

    start: TurnStart
    prompt: Prompt
    turn: Turn | None = None

    @property
    def generated(self) -> list[int]:
        """Its tokens, without the prompt's."""
        assert self.turn is not None, "it has not run"
        return self.turn.tokens[self.start.num_prompt_tokens :]


class _LocalBus:
    """Encodes what a worker would publish.

    Args:
        steps: see `InProcessEngine`.
    """

    payload_bytes_max = PAYLOAD_BYTES_MAX

    def __init__(self, steps: dict[int, tuple[int, int]]) -> None:
        self._steps = steps

    async def publish(self, subject: object, message: object, ident: str = "") -> None:
        encode(message)
        if not isinstance(message, StepOutput):
            return
        now_ns = SystemClock().now_ns()
        for delta in message.deltas:
            assert delta.finish != "error", f"a turn failed: {delta.message}"
        indexes = [delta.index for delta in message.deltas]
        for index in [*indexes, *(index for _, _, index, _ in message.tokens)]:
            num_before = self._steps.get(index, (0, 0))[1]
            self._steps[index] = (now_ns, num_before + 1)


class _LocalKv:
    """What the runner asks a `KvClient` for, answered by a store; without one it is away."""

    def __init__(self, store: LocalStore | None, core: EngineCore, adapters_path: str) -> None:
        self._store = store
        self._core = core
        self.adapters_path = adapters_path

    @property
    def is_connected(self) -> bool:
        """Whether what is unwritten can still be written: a full store takes nothing."""
        store = self._store
        return store is not None and (store.has_room or self._core.write_behind.can_go_on)

    async def stage_turn(self, effect: StageTurn) -> Staged | None:
        return await self.stage(effect.keys)

    async def stage(self, keys: list[BlockKey]) -> Staged | None:
        return None if self._store is None else self._store.stage(keys)

    async def commit(self, writes: list[BlockWrite], checksums: list[list[int]]) -> bool:
        if self._store is not None:
            self._store.commit(writes)
        return self._store is not None

    async def lease(self, num_pages: int) -> list[int] | None:
        return None if self._store is None else self._store.lease(num_pages)

    async def release(self, *, pages: list[int] | None = None, **_: Any) -> None:
        if self._store is not None and pages:
            self._store.give_back(pages)


@dataclass(slots=True)
class InProcessEngine:
    """Runs turns to their ends.

    Attributes:
        thread: launches steps. The model is to be loaded in it as well: OpenMP keeps a team of
            threads for each thread that computes, and two teams slow each other down.
        store: KV goes there and comes from there.
        moves: what the executor reports to; needed with a store, and for adapters.
        adapters_path: folder with every adapter's files under its hash.
        steps: of turns that started together in the latest run: when their tokens of each index
            were sent, ns, and how many, by index.
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
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    _waiting: list[Submitted] = field(default_factory=list)
    _names: Iterator[int] = field(default_factory=count)
    _moved: deque[Moved] = field(default_factory=deque)
    _runner: EngineRunner | None = None
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
        assert self.store is None or self.moves is not None, "what moves would be reported nowhere"

    def submit(
        self, tokens: list[int], max_tokens: int, adapter: AdapterRef | None = None
    ) -> Submitted:
        """A greedy turn that generates `max_tokens` tokens, on an adapter or on the base model; it
        begins with `run`.
        """
        assert adapter is None or self.moves is not None, "what is built would be reported nowhere"
        turn_id = TurnId(str(next(self._names)))
        start = TurnStart(
            turn_id=turn_id,
            frontend_id=FRONTEND,
            model_id=ModelId(self.executor.info.model_id),
            num_prompt_tokens=len(tokens),
            adapter=adapter,
        )
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        prompt = Prompt(turn_id=turn_id, attempt=1, tokens=pack_ints(tokens), sampling=sampling)
        self._waiting.append(Submitted(start, prompt))
        return self._waiting[-1]

    def run(self) -> None:
        """Until no turn is left, and what was computed is in the store, or that is full."""
        self.steps.clear()
        asyncio.run(self._run())

    def first_s(self, since_ns: int) -> float:
        """Seconds from an instant to the first token, which was sent since."""
        return (self.steps[0][0] - since_ns) / 1e9

    def times_ns(self, num_turns: int) -> list[int]:
        """When all of so many turns had sent a further token, after their first."""
        further = sorted(self.steps.items())[1:]
        return [at_ns for _, (at_ns, num_tokens) in further if num_tokens == num_turns]

    def on_moved(self, moved: Moved) -> None:
        """The mover's report, from one of its threads."""
        self._moved.append(moved)
        with suppress(RuntimeError):  # the loop has ended
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._take_moved)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        bus, kv = _LocalBus(self.steps), _LocalKv(self.store, self.core, self.adapters_path)
        threads = DeviceThreads(self.thread)
        self._runner = runner = EngineRunner(
            cast(Bus, bus), SystemClock(), self.core, self.executor, cast(KvClient, kv), threads,
            EngineListeners(),
        )  # fmt: skip
        if self.store is not None and not self.core.write_behind.is_connected:
            runner.on_kv_connected(self.store.arena, EPOCH)
        self._take_moved()  # what moved before the loop was there
        for submitted in self._waiting:
            runner.on_prompt(submitted.start, submitted.prompt)
            submitted.turn = self.core.turns[submitted.start.turn_id]
        self._waiting.clear()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(runner.run())
            await runner.drain()
            running.cancel()
        threads.close()

    def _take_moved(self) -> None:
        assert self._runner is not None
        while self._moved:
            self._runner.on_moved(self._moved.popleft())


def some_prompt(seed: int, length: int, vocab_size: int) -> list[int]:
    """Tokens from a seed."""
    rng = random.Random(seed)
    return [rng.randrange(vocab_size) for _ in range(length)]
