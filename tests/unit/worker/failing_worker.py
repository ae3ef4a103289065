"""``python -m tests.unit.worker.failing_worker FAILURE``: a worker whose device fails in its first
step, as a process of its own.
"""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

from services.worker import service
from services.worker.config import WorkerConfig
from services.worker.core.engine import steps_in_flight
from services.worker.core.step import StepPlan, StepResult
from services.worker.device.base.executor import Launched
from services.worker.device.thread import DeviceThread, DeviceThreads
from services.worker.ports import OnMoved, TextModel, WorkerPorts
from shared.bus import Bus
from shared.ids import FrontendId, HostId, ModelId, TurnId
from shared.runtime.config import ServiceConfig
from shared.service import Machine, Runtime, run_on
from shared.wire.messages import Prompt, SamplingParams, TurnsStart, TurnStart, encode, pack_ints
from shared.wire.subjects import WORKER_START
from tests.memory_bus import MemoryBus
from tests.unit.worker.test_service import Device, MemoryFiles, MemoryKvstore


class FailingDevice(Device):
    """Attributes:
    failure: how a step fails: no memory is left, it cannot be launched, it is lost in it, or it
        never ends. A device that is lost never returns from a close.
    """

    failure = ""

    def launch(self, plan: StepPlan) -> Launched:
        if self.failure == "memory":
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if self.failure == "launch":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return self

    def result(self) -> StepResult:
        if self.failure == "hung":
            threading.Event().wait()
        raise RuntimeError("CUDA error: unspecified launch failure")

    def check_device(self) -> None:
        if self.failure != "memory":
            raise RuntimeError("CUDA error: the device does not answer")

    def close(self) -> None:
        if self.failure != "memory":
            threading.Event().wait()


class BusOfOneTurn(MemoryBus):
    """A turn comes once the worker listens."""

    async def flush(self) -> None:
        sampling = SamplingParams(max_tokens=5)
        prompt = Prompt(turn_id=TurnId("t"), attempt=1, tokens=pack_ints([1, 2]), sampling=sampling)
        start = TurnStart(
            turn_id=TurnId("t"), frontend_id=FrontendId("f"), model_id=ModelId("m"),
            num_prompt_tokens=2, prompt=encode(prompt).decode(),
        )  # fmt: skip
        await self.publish(WORKER_START, TurnsStart(turns=[start]), "h-w0")


class MemoryMachine(Machine):
    async def connect(self, config: ServiceConfig, name: str) -> Bus:
        return cast(Bus, BusOfOneTurn())


async def main(runtime: Runtime, config: WorkerConfig) -> None:
    kvstore = MemoryKvstore()

    async def load(
        config: WorkerConfig, thread: DeviceThread, on_moved: Callable[[str], OnMoved]
    ) -> AsyncIterator[Any]:
        device = FailingDevice(kvstore, on_moved("m"))
        device.failure = sys.argv[1]
        yield TextModel(0, device)

    await kvstore.listen(cast(MemoryBus, runtime.bus))
    ports = WorkerPorts(thread=DeviceThreads(), files=MemoryFiles(), load=load, pid=7)
    await service.Worker(runtime, config, ports).serve()


if __name__ == "__main__":
    service.FAILED_PATIENCE_S = 0.2
    steps_in_flight.STEP_UNKNOWN_NS = 50_000_000
    own = WorkerConfig(host_id=HostId("h"), instance="0")  # type: ignore[call-arg]
    sys.exit(asyncio.run(run_on(MemoryMachine(), "worker", own, main)))
