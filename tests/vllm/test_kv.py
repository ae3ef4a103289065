"""KV of a real vLLM, below it: loaded, preempted, damaged and late. Run by a Python with vLLM."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from services.worker.core.engine_limits import EngineLimits
from services.worker.models.demo_model import make_demo_model
from shared.arena import PageState
from shared.ids import FrontendId, ModelId, SessionId, TenantId, TurnId, WorkerId
from shared.runtime.clock import SystemClock
from shared.wire.messages import (
    Prefetch,
    Prompt,
    SamplingParams,
    StepOutput,
    TurnDelta,
    TurnStart,
    pack_ints,
)
from tests.memory_bus import MemoryBus
from tests.vllm.kvstore import HOST, SmallKvstore

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

NUM_BLOCKS = 24
NUM_NEW = 16
ANSWER_S = 60.0
TENANT = TenantId("t")


@dataclass
class Scene:
    """A runner on a real engine, and what it sent."""

    engine: Any
    bus: MemoryBus
    kvstore: SmallKvstore
    runner: Any
    gone: list[str]
    prefetched: "asyncio.Queue[Any]"
    number: int = 0
    deltas: dict[str, list[TurnDelta]] = field(default_factory=dict)

    async def ask(
        self, tokens: list[int], num_new: int = NUM_NEW, salt: str = "", session: str = "s"
    ) -> tuple[list[int], TurnDelta]:
        """A turn, greedy: what it says, and its first delta."""
        self.number += 1
        turn_id = TurnId(f"t{self.number}")
        start = TurnStart(
            turn_id=turn_id, frontend_id=FrontendId("f"), model_id=ModelId("m"), attempt=1,
            num_prompt_tokens=len(tokens), tenant=TENANT, session_id=SessionId(session),
        )  # fmt: skip
        sampling = SamplingParams(max_tokens=num_new, temperature=0.0, ignore_eos=True)
        prompt = Prompt(
            turn_id=turn_id, attempt=1, tokens=pack_ints(tokens), cache_salt=salt,
            sampling=sampling,
        )  # fmt: skip
        self.runner.on_prompt(start, prompt)
        async with asyncio.timeout(ANSWER_S):
            return await self._read(turn_id)

    async def _read(self, turn_id: TurnId) -> tuple[list[int], TurnDelta]:
        while True:
            await asyncio.sleep(0.005)
            found = sorted(
                (
                    delta
                    for _, message in self.bus.published
                    if isinstance(message, StepOutput)
                    for delta in message.all()
                    if delta.turn_id == turn_id
                ),
                key=lambda delta: delta.index,
            )
            if found and found[-1].finish:
                return [token for delta in found for token in delta.tokens], found[0]
            assert not self.gone, self.gone


@asynccontextmanager
async def scene_in(folder: Path, num_ranks: int = 1) -> AsyncIterator[Scene]:
    from services.worker.config import WorkerConfig
    from services.worker.device.thread import DeviceThreads
    from services.worker.kv_client import KvClient
    from services.worker.outbox import EngineListeners
    from services.worker.ports import SharedFiles
    from services.worker.vllm_engine import start_engine
    from services.worker.vllm_kv import VllmKv
    from services.worker.vllm_runner import VllmRunner

    settings = WorkerConfig.model_validate(
        {
            "dtype": "float32",
            "max_model_len": 1024,
            "num_threads": 1,
            "vllm_args": {
                "num_gpu_blocks_override": NUM_BLOCKS,
                "tensor_parallel_size": num_ranks,
            },
        }
    )
    engine = start_engine(settings, "m", str(make_demo_model(folder / "model")))
    gone: list[str] = []
    prefetched: asyncio.Queue[Any] = asyncio.Queue()
    bus, clock, threads = MemoryBus(), SystemClock(), DeviceThreads()
    kvstore = SmallKvstore(bus, folder)
    await kvstore.serve()
    kv = VllmKv(engine.peers, clock, gone.append)
    kv.kv = KvClient(
        cast(Any, bus), HOST, WorkerId("w"), engine.info, kv.hooks(), SharedFiles(), threads
    )
    runner = VllmRunner(
        cast(Any, bus), clock, engine, EngineLimits(max_model_len=1024),
        EngineListeners(on_stuck=gone.append, on_prefetched=prefetched.put_nowait), kv,
    )  # fmt: skip
    tasks = [asyncio.ensure_future(work) for work in (kv.run(), kv.kv.maintain(), runner.run())]
    await kv.kv.wait_met(30)
    try:
        yield Scene(engine, bus, kvstore, runner, gone, prefetched)
    finally:
        for task in tasks:
            task.cancel()
        engine.close()
        threads.close()


def talk(number: int, num_tokens: int) -> list[int]:
    return [(number * 37 + at * at) % 250 + 1 for at in range(num_tokens)]


async def fill(scene: Scene) -> None:
    """Other prompts take all of vLLM's cache."""
    for _ in range(3):
        await scene.ask(talk(100 + scene.number, 700), 1, session="")


def test_kv_comes_back_right_or_is_computed_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            await loaded(scene)
            await damaged(scene)
            await late(scene)
            await hinted(scene)
            await preempted(scene)
            await asyncio.sleep(0)
            assert not scene.kvstore.tickets, "a ticket is held for ever"

    asyncio.run(scenario())


def test_two_ranks_have_their_parts_of_each_block(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path, num_ranks=2) as scene:
            await loaded(scene)
            await damaged(scene)
            victims = [pid for pid in children_of(os.getpid()) if "Worker" in name_of(pid)]
            os.kill(victims[-1], signal.SIGKILL)
            with pytest.raises(AssertionError, match=r"connector|ended"):
                await scene.ask(talk(9, 300), 500)

    asyncio.run(scenario())


def children_of(pid: int) -> list[int]:
    """All processes below one."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        own = [int(word) for word in file.read().split()]
    return [*own, *(each for child in own for each in children_of(child))]


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


async def loaded(scene: Scene) -> None:
    prompt = talk(1, 400)
    first, delta = await scene.ask(prompt)
    assert not delta.cached_tokens
    await fill(scene)
    again, delta = await scene.ask(prompt)
    assert again == first and delta.cached_in == {"host": 384}
    local, delta = await scene.ask(prompt)
    assert local == first and delta.cached_in == {"pool": 384}
    _, delta = await scene.ask(prompt, salt="other")
    assert not delta.cached_tokens


async def damaged(scene: Scene) -> None:
    prompt = talk(2, 400)
    first, _ = await scene.ask(prompt)
    await fill(scene)
    scene.kvstore.spoil = PageState.BAD
    again, delta = await scene.ask(prompt)
    assert again == first and delta.cached_in == {"host": 192}, "as far as it was good"
    assert scene.runner.status().totals.num_load_failures == 3
    await fill(scene)
    again, delta = await scene.ask(prompt)
    assert again == first and delta.cached_in == {"host": 384}, "it was stored again"


async def late(scene: Scene) -> None:
    prompt = talk(3, 400)
    first, _ = await scene.ask(prompt)
    await fill(scene)
    scene.kvstore.spoil = PageState.FILLING
    waiting = asyncio.ensure_future(scene.ask(prompt))
    await scene.ask(talk(4, 50))
    assert not waiting.done(), "others go on meanwhile"
    again, delta = await waiting
    assert again == first and delta.cached_in == {"host": 192}


async def hinted(scene: Scene) -> None:
    prompt = talk(5, 400)
    first, _ = await scene.ask(prompt, session="h")
    await fill(scene)
    num_staged = scene.kvstore.num_staged
    scene.runner.on_prefetch(
        Prefetch(session_id=SessionId("h"), model_id=ModelId("m"), tenant=TENANT, trace="t")
    )
    async with asyncio.timeout(ANSWER_S):
        await scene.prefetched.get()
    assert scene.kvstore.num_staged == num_staged + 6 and scene.kvstore.tickets
    again, delta = await scene.ask(prompt, session="h")
    assert again == first and delta.cached_in == {"pool": 384}
    scene.runner.on_prefetch(
        Prefetch(session_id=SessionId("unknown"), model_id=ModelId("m"), tenant=TENANT)
    )


async def preempted(scene: Scene) -> None:
    prompts = [talk(10 + number, 200) for number in range(6)]
    num_new = 130  # six of them need more blocks than there are
    expected = [
        (await scene.ask(prompt, num_new, salt=f"a{at}"))[0] for at, prompt in enumerate(prompts)
    ]
    num_before, num_staged = scene.engine.counts.num_preemptions, scene.kvstore.num_staged
    found = await asyncio.gather(
        *(scene.ask(prompt, num_new, salt=f"b{at}") for at, prompt in enumerate(prompts))
    )
    assert [tokens for tokens, _ in found] == expected
    assert scene.engine.counts.num_preemptions > num_before
    assert scene.kvstore.num_staged > num_staged, "nothing came back from below"
