"""A worker's KV below vLLM: real messages to a kvstore, made-up connectors."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from services.worker.core.turns.intake import take_in
from services.worker.core.turns.turn import Turn
from services.worker.core.vllm import messages as m
from services.worker.device.base.executor import ModelInfo, shape_of
from services.worker.device.thread import DeviceThreads
from services.worker.kv_client import KvClient
from services.worker.ports import SharedFiles
from services.worker.vllm_kv import VllmKv
from shared.arena import checksum
from shared.blocks import BLOCK_TOKENS, chain_keys, root_key
from shared.ids import FrontendId, ModelId, SessionId, TenantId, TurnId, WorkerId
from shared.owners import owner_key
from shared.runtime.clock import SystemClock
from shared.wire.messages import Prompt, SamplingParams, TurnStart, pack_ints, unpack_ints
from tests.memory_bus import MemoryBus
from tests.vllm.kvstore import HOST, SmallKvstore

TENANT, SESSION = TenantId("t"), SessionId("s")
OWNER = owner_key(TENANT, SESSION)
RANKS, LAYERS, PAGE_BYTES = 2, 2, 64
INFO = ModelInfo(
    model_id="m", source="m", fingerprint="f", max_model_len=1000, num_layers=LAYERS * RANKS,
    page_bytes=PAGE_BYTES, stored_page_bytes=PAGE_BYTES, num_pages=400, vocab_size=100,
    end_token_ids=frozenset([9]), block_tokens=BLOCK_TOKENS,
)  # fmt: skip
TOKENS = [at % 97 for at in range(3 * BLOCK_TOKENS + 5)]
ROOT = root_key("f", TENANT)
KEYS = chain_keys(ROOT, TOKENS)
PATIENCE_S = 10.0


@dataclass
class FakePeer:
    """A connector that says what a test has it say.

    Attributes:
        answers: a rank: whether it answers what it is asked, at once.
    """

    rank: int
    heard: list[Any] = field(default_factory=list)
    answers: bool = True
    error: str = ""
    token_rows: int = 0
    on_message: Callable[[Any, Any], None] | None = None
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def registered(self) -> m.Registered:
        return m.Registered(
            rank=self.rank, num_layers=LAYERS, page_bytes=PAGE_BYTES, token_rows=self.token_rows
        )

    def send(self, message: Any) -> None:
        self.heard.append(message)
        if self.rank >= 0 and self.answers:
            self.answer(message)

    def answer(self, message: Any) -> None:
        match message:
            case m.Opened(epoch=epoch):
                self.say(m.Attached(epoch=epoch, error=self.error))
            case m.Closed(epoch=epoch):
                self.say(m.Detached(epoch=epoch))

    def say(self, message: Any) -> None:
        assert self.on_message is not None
        asyncio.get_running_loop().call_soon(self.on_message, self, message)

    async def read(self, on_message: Callable[[Any, Any], None]) -> None:
        self.on_message = on_message
        await self.gone.wait()

    def last(self, kind: type[Any]) -> Any:
        return next(each for each in reversed(self.heard) if isinstance(each, kind))


@dataclass
class Scene:
    kv: VllmKv
    bus: MemoryBus
    kvstore: SmallKvstore
    scheduler: FakePeer
    ranks: list[FakePeer]
    gone: list[str]

    async def until(self, is_so: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():  # noqa: ASYNC110  # what it waits for has no event
                await asyncio.sleep(0)

    async def lose(self) -> None:
        """Find that the kvstore was away, and is back: no connection to it is left."""
        self.kvstore.is_away = True
        await self.kv.kv.stage(KEYS)
        self.kvstore.is_away = False
        assert not self.kv.kv.is_connected

    async def lease(self, num_blocks: int) -> list[int]:
        self.scheduler.heard.clear()
        self.scheduler.say(m.LeaseWanted(epoch=self.kv.kv.epoch, num_blocks=num_blocks))
        await self.until(lambda: self.scheduler.heard)
        return unpack_ints(self.scheduler.last(m.Leased).pages)

    def write(self, number: int, pages: list[int]) -> m.Write:
        return m.Write(
            number=number, key=KEYS[number].hex(),
            parent=(KEYS[number - 1] if number else ROOT).hex(),
            tokens=pack_ints(TOKENS[number * BLOCK_TOKENS : (number + 1) * BLOCK_TOKENS]),
            arena_pages=pack_ints(pages), owner=OWNER.hex(),
        )  # fmt: skip

    def order(self, writes: list[m.Write]) -> None:
        self.scheduler.say(m.Writes(epoch=self.kv.kv.epoch, writes=writes))

    def copy(self, rank: int, numbers: list[int], pages: list[list[int]]) -> None:
        """A rank stores its pages of these blocks, and says so."""
        arena = self.kvstore.arena
        assert arena is not None
        sums = []
        for of_block in pages:
            own = of_block[rank::RANKS]
            for page in own:
                arena.pages[page] = np.random.default_rng(page).integers(0, 256, PAGE_BYTES)
            sums.append(pack_ints([checksum(arena.pages[page].data) for page in own], "Q"))
        self.ranks[rank].say(m.Stored(rank=rank, numbers=numbers, checksums=sums))

    async def store(self, numbers: list[int]) -> None:
        """All of a store, as it goes when nothing is wrong."""
        pages = await self.lease(len(numbers))
        rows = [pages[at * 4 : at * 4 + 4] for at in range(len(numbers))]
        self.order([self.write(number, row) for number, row in zip(numbers, rows, strict=True)])
        for rank in range(RANKS):
            self.copy(rank, numbers, rows)
        await self.until(lambda: all(KEYS[number] in self.kvstore.blocks for number in numbers))


@asynccontextmanager
async def scene_in(folder: Path, *, token_rows: int = 0) -> AsyncIterator[Scene]:
    bus, clock, threads = MemoryBus(), SystemClock(), DeviceThreads()
    kvstore = SmallKvstore(bus, folder)
    await kvstore.serve()
    peers = [FakePeer(rank, token_rows=token_rows) for rank in range(-1, RANKS)]
    gone: list[str] = []
    kv = VllmKv(cast(Any, peers), clock, gone.append)
    files = SharedFiles()
    kv.kv = KvClient(cast(Any, bus), HOST, WorkerId("w"), INFO, kv.hooks(), files, threads)
    tasks = [asyncio.ensure_future(work) for work in (kv.run(), kv.kv.maintain())]
    try:
        await kv.kv.wait_met(PATIENCE_S)
        yield Scene(kv, bus, kvstore, peers[0], peers[1:], gone)
    finally:
        for task in tasks:
            task.cancel()
        kv.kv.close()
        threads.close()


def turn_of(num_tokens: int = len(TOKENS), **more: Any) -> Turn:
    start = TurnStart(
        turn_id=TurnId("a"), frontend_id=FrontendId("f"), model_id=ModelId("m"),
        num_prompt_tokens=num_tokens, tenant=TENANT, session_id=SESSION,
    )  # fmt: skip
    prompt = Prompt(
        turn_id=TurnId("a"), attempt=1, tokens=pack_ints(TOKENS[:num_tokens]),
        sampling=SamplingParams(max_tokens=3), **more,
    )  # fmt: skip
    return take_in(start, prompt, shape_of(INFO), 0)
