"""A worker's runner on a real vLLM, with a kvstore that tests can spoil."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from services.worker.core.engine_limits import EngineLimits
from services.worker.models.demo_model import make_demo_model
from shared.ids import FrontendId, ModelId, SessionId, TenantId, TurnId, WorkerId
from shared.runtime.clock import SystemClock
from shared.wire.messages import (
    Prompt,
    SamplingParams,
    StepOutput,
    TurnDelta,
    TurnStart,
    pack_ints,
)
from tests.memory_bus import MemoryBus
from tests.vllm.kvstore import HOST, SmallKvstore

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
async def scene_in(
    folder: Path, num_ranks: int = 1, model: Path | None = None
) -> AsyncIterator[Scene]:
    """Args:
    model: folder; None: the demo model.
    """
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
    engine = start_engine(settings, "m", str(model or make_demo_model(folder / "model")))
    gone: list[str] = []
    prefetched: asyncio.Queue[Any] = asyncio.Queue()
    bus, clock, threads = MemoryBus(), SystemClock(), DeviceThreads()
    kvstore = SmallKvstore(bus, folder)
    await kvstore.serve()
    kv = VllmKv(engine.peers, clock, gone.append) if engine.peers else None
    works = []
    if kv is not None:
        kv.kv = KvClient(
            cast(Any, bus), HOST, WorkerId("w"), engine.info, kv.hooks(), SharedFiles(), threads
        )
        works = [kv.run(), kv.kv.maintain()]
    runner = VllmRunner(
        cast(Any, bus), clock, engine, EngineLimits(max_model_len=1024),
        EngineListeners(on_stuck=gone.append, on_prefetched=prefetched.put_nowait), kv,
    )  # fmt: skip
    tasks = [asyncio.ensure_future(work) for work in (*works, runner.run())]
    if kv is not None:
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
