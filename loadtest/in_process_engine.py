"""The worker's engine in one process: the production runner and executor, without a network.

What turns generate is encoded as a worker does and sent nowhere; a `LocalStore` may stand in for
the kvstore.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast

from loadtest.local_store import EPOCH, LocalStore
from services.worker.core.effects import BlockWrite, StageImage, StageSession, StageTurn
from services.worker.core.engine.engine import EngineCore
from services.worker.core.engine_limits import EngineLimits
from services.worker.core.kv.pages import PagePool
from services.worker.core.kv.staged import Staged
from services.worker.core.turns.turn import Turn
from services.worker.device.base.executor import Executor
from services.worker.device.copying.mover import Moved
from services.worker.device.thread import DeviceThreads
from services.worker.kv_client import KvClient
from services.worker.outbox import EngineListeners
from services.worker.runner import EngineRunner
from shared.blocks import BlockKey, chain_keys, root_key
from shared.bus import Bus
from shared.ids import FrontendId, ModelId, SessionId, TurnId
from shared.runtime.clock import SystemClock
from shared.runtime.tasks import wait_set
from shared.wire.messages import (
    AdapterRef,
    Prefetch,
    Prompt,
    SamplingParams,
    StepOutput,
    TurnStart,
    encode,
    pack_ints,
)

PAYLOAD_BYTES_MAX = 1 << 20  # as NATS has it
PREFETCH_PATIENCE_S = 10.0
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
    """A turn that was submitted, and what became of it once the engine has run.

    Attributes:
        is_announced: an advisory comes first, and the turn once what it needs is prefetched.
        began_ns: when it came.
        sent_ns: when each of its tokens was sent.
        num_cached: tokens of its prompt that were not computed.
    """

    start: TurnStart
    prompt: Prompt
    is_announced: bool = False
    turn: Turn | None = None
    began_ns: int = 0
    sent_ns: list[int] = field(default_factory=list)
    num_cached: int = 0
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def generated(self) -> list[int]:
        """Its tokens, without the prompt's."""
        assert self.turn is not None, "it has not run"
        return self.turn.tokens[self.start.num_prompt_tokens :]

    @property
    def first_s(self) -> float:
        """Seconds from its coming to its first token."""
        return (self.sent_ns[0] - self.began_ns) / 1e9

    @property
    def token_s(self) -> float:
        """Seconds of one of its further tokens."""
        return (self.sent_ns[-1] - self.sent_ns[0]) / 1e9 / (len(self.sent_ns) - 1)


class _LocalBus:
    """Encodes what a worker would publish, and enters it in the turns of this run."""

    payload_bytes_max = PAYLOAD_BYTES_MAX

    def __init__(self, turns: dict[TurnId, Submitted]) -> None:
        self._turns = turns

    async def publish(self, subject: object, message: object, ident: str = "") -> None:
        encode(message)
        if not isinstance(message, StepOutput):
            return
        now_ns = SystemClock().now_ns()
        for delta in message.deltas:
            assert delta.finish != "error", f"a turn failed: {delta.message}"
            turn = self._turns[delta.turn_id]
            turn.sent_ns += [now_ns] * len(delta.tokens)
            turn.num_cached = delta.cached_tokens or turn.num_cached
            if delta.finish is not None:
                turn.is_over.set()
        for turn_id, _, _, _ in message.tokens:
            self._turns[turn_id].sent_ns.append(now_ns)


class _LocalKv:
    """What the runner asks a `KvClient` for, answered by a store; without one it is away."""

    def __init__(self, engine: "InProcessEngine") -> None:
        self._store = engine.store
        self._core = engine.core
        self._records = engine.records
        self.adapters_path = engine.adapters_path

    @property
    def is_connected(self) -> bool:
        """Whether what is unwritten can still be written: a full store takes nothing."""
        store = self._store
        return store is not None and (store.has_room or self._core.write_behind.can_go_on)

    async def stage_turn(self, effect: StageTurn) -> Staged | None:
        return await self.stage(effect.keys)

    async def stage_session(self, effect: StageSession) -> Staged | None:
        return await self.stage(self._records[effect.session_id])

    async def stage_image(self, effect: StageImage) -> Staged | None:
        return await self.stage(effect.keys)

    def count_use(self, adapter: AdapterRef) -> None:
        """No other host would fetch it."""

    def has_adapter(self, adapter_hash: str) -> bool:
        """All files are here."""
        return True

    async def stage(self, keys: list[BlockKey]) -> Staged | None:
        return None if self._store is None else self._store.stage(keys)

    async def commit(
        self, writes: list[BlockWrite], checksums: list[list[int]]
    ) -> AsyncIterator[tuple[list[BlockKey], bool]]:
        if self._store is not None:
            self._store.commit(writes)
        yield [write.key for write in writes], self._store is not None

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
        num_pages: of the pool; 0: as many as the executor has.
        turns: of the latest run.
        records: keys of the blocks of each session that was announced.
    """

    executor: Executor
    thread: ThreadPoolExecutor
    prefill_tokens_max: int
    steps_ahead_max: int = 1
    turns_running_max: int = 64
    store: LocalStore | None = None
    moves: Moves | None = None
    adapters_path: str = ""
    num_pages: int = 0
    core: EngineCore = field(init=False)
    turns: dict[TurnId, Submitted] = field(default_factory=dict)
    records: dict[SessionId, list[BlockKey]] = field(default_factory=dict)
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
        pool = PagePool(self.num_pages or info.num_pages, info.num_layers)
        self.core = EngineCore(
            limits, pool, info.page_bytes, info.end_token_ids, info.block_tokens, info.fingerprint,
            info.stored_page_bytes,
        )  # fmt: skip
        if self.moves is not None:
            self.moves.engine = self
        assert self.store is None or self.moves is not None, "what moves would be reported nowhere"

    def submit(
        self,
        tokens: list[int],
        max_tokens: int,
        adapter: AdapterRef | None = None,
        *,
        announced_as: str = "",
        logprobs: int | None = None,
    ) -> Submitted:
        """A greedy turn that generates `max_tokens` tokens, on an adapter or on the base model; it
        begins with `run`.

        Args:
            announced_as: the session whose turn is announced ahead; empty: it is not.
            logprobs: likeliest tokens to return with each.
        """
        assert adapter is None or self.moves is not None, "what is built would be reported nowhere"
        turn_id = TurnId(str(next(self._names)))
        start = TurnStart(
            turn_id=turn_id,
            frontend_id=FRONTEND,
            model_id=ModelId(self.executor.info.model_id),
            num_prompt_tokens=len(tokens),
            adapter=adapter,
            session_id=SessionId(announced_as) if announced_as else None,
        )
        if announced_as:
            root = root_key(self.executor.info.fingerprint, start.tenant)
            self.records[SessionId(announced_as)] = chain_keys(root, tokens)
        sampling = SamplingParams(
            max_tokens=max_tokens, temperature=0.0, ignore_eos=True, logprobs=logprobs
        )
        prompt = Prompt(turn_id=turn_id, attempt=1, tokens=pack_ints(tokens), sampling=sampling)
        self._waiting.append(Submitted(start, prompt, bool(announced_as)))
        return self._waiting[-1]

    def run(self, *, in_turn: bool = False) -> None:
        """Until no turn is left, and what was computed is in the store, or that is full.

        Args:
            in_turn: a turn comes when the one before it has ended; else all come at once.
        """
        asyncio.run(self._run(in_turn))

    def first_s(self) -> float:
        """Seconds until all turns of the latest run had their first token, which came at once."""
        turns = self.turns.values()
        return (max(t.sent_ns[0] for t in turns) - min(t.began_ns for t in turns)) / 1e9

    def times_ns(self) -> list[int]:
        """When all turns of the latest run had sent a further token, after their first."""
        further = (turn.sent_ns[1:] for turn in self.turns.values())
        return [max(at_ns) for at_ns in zip(*further, strict=False)]

    def on_moved(self, moved: Moved) -> None:
        """The mover's report, from one of its threads."""
        self._moved.append(moved)
        with suppress(RuntimeError):  # the loop has ended
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._take_moved)

    async def _run(self, in_turn: bool) -> None:
        self._loop = asyncio.get_running_loop()
        waiting, self._waiting = self._waiting, []
        self.turns = {each.start.turn_id: each for each in waiting}
        bus, kv, threads = _LocalBus(self.turns), _LocalKv(self), DeviceThreads(self.thread)
        is_prefetched = asyncio.Event()
        listeners = EngineListeners(on_prefetched=lambda _: is_prefetched.set())
        self._runner = runner = EngineRunner(
            cast(Bus, bus), SystemClock(), self.core, self.executor, cast(KvClient, kv), threads,
            listeners,
        )  # fmt: skip
        if self.store is not None and not self.core.write_behind.is_connected:
            runner.on_kv_connected(self.store.arena, EPOCH)
        self._take_moved()  # what moved before the loop was there
        async with asyncio.TaskGroup() as group:
            running = group.create_task(runner.run())
            for submitted in waiting:
                if submitted.is_announced:
                    is_prefetched.clear()
                    runner.on_prefetch(self._prefetch_of(submitted.start))
                    await wait_set(is_prefetched, PREFETCH_PATIENCE_S)
                submitted.began_ns = SystemClock().now_ns()
                runner.on_prompt(submitted.start, submitted.prompt)
                submitted.turn = self.core.turns[submitted.start.turn_id]
                if in_turn:
                    await submitted.is_over.wait()
            await runner.drain()
            running.cancel()
        threads.close()

    def _prefetch_of(self, start: TurnStart) -> Prefetch:
        assert start.session_id is not None, "it is announced under a session's name"
        return Prefetch(session_id=start.session_id, model_id=start.model_id, trace="local")

    def _take_moved(self) -> None:
        assert self._runner is not None
        while self._moved:
            self._runner.on_moved(self._moved.popleft())


def some_prompt(seed: int, length: int, vocab_size: int) -> list[int]:
    """Tokens from a seed."""
    rng = random.Random(seed)
    return [rng.randrange(vocab_size) for _ in range(length)]
