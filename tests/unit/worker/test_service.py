"""The production worker in one process: no threads, no files, and a clock that jumps.

Its device computes pages that can be checked: each holds all tokens up to its last one.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from services.worker.config import WorkerConfig
from services.worker.core.effects import BlockWrite, BuildImage, PageLoads
from services.worker.core.engine.engine import EngineCore
from services.worker.core.kv.pages import PagePool
from services.worker.core.step import Sampled, StepPlan, StepResult
from services.worker.device.base.executor import Finished, Launched, ModelInfo, RecordsNothing
from services.worker.device.copying.mover import Loaded, Stored
from services.worker.device.thread import DeviceThread
from services.worker.kv_client import PROBE_S
from services.worker.ports import OnMoved, TextModel, WorkerPorts
from services.worker.service import Worker
from shared.arena import Arena
from shared.blocks import BlockKey, pack_keys, unpack_keys
from shared.ids import FrontendId, HostId, ModelId, SessionId, TurnId, WorkerId
from shared.service import Runtime
from shared.wire.messages import (
    KvCommit,
    KvCommitted,
    KvLease,
    KvLeased,
    KvOpen,
    KvOpened,
    KvRenewed,
    KvStage,
    KvStaged,
    Prefetch,
    Prompt,
    PromptPull,
    PromptReply,
    RunningTurn,
    SamplingParams,
    StepOutput,
    TurnPrefetched,
    TurnsStart,
    TurnStart,
    WorkerReport,
    encode,
    pack_ints,
    unpack_ints,
)
from shared.wire.subjects import (
    KV_COMMIT,
    KV_LEASE,
    KV_OPEN,
    KV_RENEW,
    KV_STAGE,
    PROMPT_PULL,
    STEP_OUTPUT,
    TURN_PREFETCHED,
    TURNS_ENDED,
    WORKER_PREFETCH,
    WORKER_REPORT,
    WORKER_START,
)
from tests.jumping_loop import JumpingLoop, LoopClock
from tests.memory_bus import MemoryBus

T = TypeVar("T")
Content = tuple[int, ...]

NUM_LAYERS, BLOCK_TOKENS, VOCAB = 2, 4, 1000
STEP_NS = 20_000_000
ARENA_PAGES = 64
FRONTEND = FrontendId("f")
INFO = ModelInfo(
    model_id="m",
    source="",
    fingerprint="f",
    max_model_len=64,
    num_layers=NUM_LAYERS,
    page_bytes=8,
    stored_page_bytes=8,
    num_pages=40,
    vocab_size=VOCAB,
    end_token_ids=frozenset(),
    block_tokens=BLOCK_TOKENS,
)


def next_token(content: Content) -> int:
    """What the model generates behind these tokens."""
    return (7 * sum(content) + len(content)) % VOCAB


def reply_to(prompt: list[int], num_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tuple(tokens)))
    return tokens[len(prompt) :]


class MemoryKvstore:
    """An arena without a file, and every block that was committed."""

    def __init__(self) -> None:
        self.arena: dict[int, Content] = {}
        self.blocks: dict[Any, list[int]] = {}
        self.gone: list[BlockKey] = []
        self._num_leased = 0

    async def listen(self, bus: MemoryBus) -> None:
        await bus.serve(KV_OPEN, self._on_open, "h")
        await bus.serve(KV_RENEW, self._on_renew, "h")
        await bus.serve(KV_LEASE, self._on_lease, "h")
        await bus.serve(KV_STAGE, self._on_stage, "h")
        await bus.serve(KV_COMMIT, self._on_commit, "h")

    async def _on_open(self, _: KvOpen) -> KvOpened:
        return KvOpened(arena_path="arena", lease_path="lease")

    async def _on_renew(self, _: Any) -> KvRenewed:
        return KvRenewed(gone=pack_keys(self.gone))

    async def _on_lease(self, lease: KvLease) -> KvLeased:
        first = self._num_leased
        self._num_leased = min(first + lease.num_pages, ARENA_PAGES)
        return KvLeased(pages=pack_ints(list(range(first, self._num_leased))))

    async def _on_stage(self, stage: KvStage) -> KvStaged:
        pages: list[list[int]] = []
        for key in unpack_keys(stage.keys):
            if key not in self.blocks:
                break
            pages.append(self.blocks[key])
        by_layer = [page for layer in range(NUM_LAYERS) for page in (b[layer] for b in pages)]
        return KvStaged(
            ticket=1, num_blocks=len(pages), pages=pack_ints(by_layer),
            generations=pack_ints([1] * len(by_layer)), num_here=len(pages),
        )  # fmt: skip

    async def _on_commit(self, commit: KvCommit) -> Any:
        for block in commit.blocks:
            (key,) = unpack_keys(block.key)
            self.blocks[key] = unpack_ints(block.pages)
        return KvCommitted()


class Device(RecordsNothing):
    """Executor, mover and builder at once."""

    info = INFO
    prefill_tokens_max = 8
    assist_tokens = 0

    def __init__(self, kvstore: MemoryKvstore, on_moved: OnMoved) -> None:
        self.mover = self.builder = self
        self.grammars = cast(Any, None)  # no turn has one
        self._kvstore = kvstore
        self._on_moved = on_moved
        self._pool: dict[int, Content] = {}
        self._tables: dict[tuple[int, int], list[int]] = {}  # by slot and block, of each layer
        self._latest: dict[int, int] = {}  # token that was chosen last, by slot

    def launch(self, plan: StepPlan) -> Launched:
        entries = plan.entries
        for slot, block, pages in zip(
            entries.slots.tolist(), entries.blocks.tolist(), entries.pages.tolist(), strict=True
        ):
            self._tables[slot, block] = pages
        sampled: list[Sampled | None] = []
        starts = plan.query_starts.tolist()
        for row, planned in enumerate(plan.rows()):
            slot = int(plan.slots[row])
            tokens = plan.tokens[starts[row] : starts[row + 1]].tolist()
            if row in plan.carried:
                tokens[-1] = self._latest[slot]
            content = self._compute(slot, planned.start, tokens)
            self._latest[slot] = next_token(content)
            sampled.append(Sampled(self._latest[slot]) if planned.is_sampled else None)
        return Finished(StepResult(sampled, duration_ns=STEP_NS, stall_ns=[0] * NUM_LAYERS))

    def _compute(self, slot: int, start: int, tokens: list[int]) -> Content:
        content: Content = ()
        for layer in range(NUM_LAYERS):
            content = ()
            if start:
                content = self._pool[self._tables[slot, (start - 1) // BLOCK_TOKENS][layer]]
                assert len(content) >= start, "the history is not there"
                content = content[:start]
            for at, token in enumerate(tokens, start):
                content = (*content, token)
                self._pool[self._tables[slot, at // BLOCK_TOKENS][layer]] = content
        return content

    def prepare(self, arena: Arena) -> None:
        pass

    def attach(self, arena: Arena, epoch: int) -> None:
        assert arena.num_pages == ARENA_PAGES

    def detach(self) -> None:
        pass

    def submit(self, build: BuildImage, folder: str) -> None:
        raise AssertionError("no turn has an adapter")

    def submit_loads(self, loads: list[PageLoads]) -> None:
        for each in loads:
            for arena_page, pool_page in zip(each.arena_pages, each.pool_pages, strict=True):
                self._pool[pool_page] = self._kvstore.arena[arena_page]
            self._on_moved(Loaded(each.pool_pages, [], 8 * len(each.pool_pages), 1000))

    def call_back(self, pool_pages: list[int]) -> None:
        pass

    def submit_stores(self, writes: list[BlockWrite], epoch: int) -> None:
        for write in writes:
            for pool_page, arena_page in zip(write.pool_pages, write.arena_pages, strict=True):
                self._kvstore.arena[arena_page] = self._pool[pool_page]
        self._on_moved(Stored({write.number: [0] * NUM_LAYERS for write in writes}))

    def check_device(self) -> None:
        pass

    def close(self) -> None:
        pass


class InstantThread:
    """Steps take the time that their results name, one after the other; all else takes none."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Future[StepResult]] = set()

    def step(self, lane: str, launch: Callable[[], Launched]) -> "asyncio.Future[StepResult]":
        task = asyncio.ensure_future(self._step(launch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _step(self, launch: Callable[[], Launched]) -> StepResult:
        async with self._turn:
            result = launch().result()
            await asyncio.sleep(result.duration_ns / 1e9)
            return result

    async def run(self, work: Callable[[], T]) -> T:
        return work()

    async def run_beside(self, work: Callable[[], T]) -> T:
        return work()

    def close(self) -> None:
        pass


class MemoryFiles:
    def __init__(self) -> None:
        self.locked: list[str] = []

    def attach(self, path: str) -> Arena:
        assert path == "arena"
        return cast(Arena, SimpleNamespace(num_pages=ARENA_PAGES, page_bytes=8))

    def lock(self, path: str) -> Any:
        self.locked.append(path)
        return SimpleNamespace(close=partial(self.locked.remove, path))

    def has_adapter(self, folder: str) -> bool:
        raise AssertionError("no turn has an adapter")


class Life:
    """One life of a worker, from its start to its end."""

    def __init__(self, bus: MemoryBus, kvstore: MemoryKvstore) -> None:
        self.files = MemoryFiles()
        self._bus = bus
        self._kvstore = kvstore
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Life":
        loop = asyncio.get_running_loop()
        runtime = self._runtime = Runtime("worker", "0", cast(Any, self._bus), self._stack)
        runtime.clock = LoopClock()
        config = WorkerConfig(host_id=HostId("h"), instance="0")  # type: ignore[call-arg]
        thread = InstantThread()
        ports = WorkerPorts(thread=thread, files=self.files, load=self._load, pid=7)
        self._serving = asyncio.ensure_future(Worker(runtime, config, ports).serve())
        while runtime.state != "ready":
            assert not self._serving.done() and loop.time() < 60, "it does not get ready"
            await asyncio.sleep(0.01)
        return self

    async def _load(
        self, config: WorkerConfig, thread: DeviceThread, on_moved: Callable[[str], OnMoved]
    ) -> AsyncIterator[Any]:
        yield TextModel(0, Device(self._kvstore, on_moved("m")))

    async def __aexit__(self, *_: object) -> None:
        self._runtime.stopping.set()
        await asyncio.wait_for(self._serving, 30)
        await self._runtime.cancel_tasks()
        await self._stack.aclose()
        assert self._runtime.exit_code == 0 and not self.files.locked

    @property
    def pool(self) -> PagePool:
        core = self._runtime.parts["engine m"]
        assert isinstance(core, EngineCore)
        return core.pool

    async def say(self, turn_id: str, tokens: list[int], num_tokens: int) -> list[Any]:
        """The deltas of one turn."""
        prompt = Prompt(
            turn_id=TurnId(turn_id), attempt=1, tokens=pack_ints(tokens),
            sampling=SamplingParams(max_tokens=num_tokens),
        )  # fmt: skip
        start = TurnStart(
            turn_id=TurnId(turn_id), frontend_id=FRONTEND, model_id=ModelId("m"),
            num_prompt_tokens=len(tokens), session_id=SessionId("s"),
            prompt=encode(prompt).decode(),
        )  # fmt: skip
        deltas: list[Any] = []
        is_over = asyncio.Event()

        def on_output(output: StepOutput) -> None:
            deltas.extend(output.all())
            if deltas[-1].finish:
                is_over.set()

        await self._bus.subscribe(STEP_OUTPUT, on_output, FRONTEND)
        await self._bus.publish(WORKER_START, TurnsStart(turns=[start]), "h-w0")
        await asyncio.wait_for(is_over.wait(), 60)
        return deltas


def test_a_worker_runs_turns_without_threads_and_files() -> None:
    prompt = list(range(1, 11))

    async def scenario() -> MemoryBus:
        bus, kvstore = MemoryBus(), MemoryKvstore()
        await kvstore.listen(bus)
        async with Life(bus, kvstore) as worker:
            assert worker.files.locked == ["lease"]
            deltas = await worker.say("t1", prompt, 6)
            reply = [token for delta in deltas for token in delta.tokens]
            assert reply == reply_to(prompt, 6) and deltas[-1].finish == "length"
        longer = [*prompt, *reply, 5, 6, 7]
        async with Life(bus, kvstore) as worker:  # another life, whose pool is empty
            deltas = await worker.say("t2", longer, 3)
            assert [token for each in deltas for token in each.tokens] == reply_to(longer, 3)
            assert deltas[0].cached_in == {"host": 12}, "its history came from the arena"
            pool = worker.pool
            assert pool.num_takeable and not pool.num_unsafe
            kvstore.gone = list(kvstore.blocks)
            await asyncio.sleep(2 * PROBE_S)
            assert pool.num_unsafe == pool.num_takeable, "it has learnt that the copies are gone"
        return bus

    before = threading.active_count()
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        bus = runner.run(scenario())
        assert threading.active_count() == before
    ends = [message for subject, message in bus.published if subject is TURNS_ENDED]
    assert [end.turn_id for each in ends for end in each.turns] == ["t1", "t2"]
    reports: list[WorkerReport] = [
        message for subject, message in bus.published if subject is WORKER_REPORT
    ]
    assert {report.state for report in reports} == {"loading", "ready", "draining"}
    assert all(report.pid == 7 for report in reports)


@pytest.mark.parametrize("is_known", [True, False])
def test_what_a_turn_runs_on_elsewhere_is_prefetched_and_the_scheduler_is_told(
    is_known: bool,
) -> None:
    prompt = list(range(1, 11))
    said = [*prompt, *reply_to(prompt, 6)]
    running = RunningTurn(turn_id=TurnId("r"), frontend_id=FRONTEND)
    pulls: list[PromptPull] = []

    async def answer(pull: PromptPull) -> PromptReply:
        pulls.append(pull)
        tokens = pack_ints([*said, 5]) if is_known else ""
        ref = pull.turns[0]
        found = Prompt(
            turn_id=ref.turn_id, attempt=ref.attempt, tokens=tokens, num_generated=7,
            gone=not is_known,
        )  # fmt: skip
        return PromptReply(prompts=[found])

    async def scenario() -> MemoryBus:
        kvstore = MemoryKvstore()
        for bus in (MemoryBus(), MemoryBus()):  # as if on two hosts that share what they keep
            await kvstore.listen(bus)
            if kvstore.blocks:
                break
            async with Life(bus, kvstore) as worker:
                await worker.say("t1", prompt, 6)
        await bus.serve(PROMPT_PULL, answer, FRONTEND)
        async with Life(bus, kvstore):
            prefetch = Prefetch(session_id=SessionId("#r"), model_id=ModelId("m"), running=running)
            await bus.publish(WORKER_PREFETCH, prefetch, "h-w0")
            await asyncio.sleep(2)
        return bus

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        bus = runner.run(scenario())
    assert all(pull.is_ahead for pull in pulls), "its attempt goes on"
    told = [message for subject, message in bus.published if subject is TURN_PREFETCHED]
    num_blocks = (len(said) - 1) // BLOCK_TOKENS  # the last token has no KV
    expected = TurnPrefetched(
        turn_id=TurnId("r"), worker_id=WorkerId("h-w0"), num_blocks=num_blocks
    )
    assert told == ([expected] if is_known else [])
