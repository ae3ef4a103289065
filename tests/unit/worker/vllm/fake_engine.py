"""A vLLM that is made up."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from services.worker.core.vllm.adapters import AdapterRoom
from services.worker.core.vllm.replies import Output
from services.worker.core.vllm.requests import AdapterFiles, VllmRequest
from services.worker.core.vllm.status import VllmCounts
from services.worker.device.base.executor import ModelInfo
from services.worker.vllm.link import Peer


@dataclass
class FakeEngine:
    """Gives what a test puts in; notes what it is asked."""

    info: ModelInfo
    counts: VllmCounts = field(default_factory=VllmCounts)
    peers: Sequence[Peer] = ()
    adapter_room: AdapterRoom = field(default_factory=AdapterRoom)
    outputs: "asyncio.Queue[Output | Exception]" = field(default_factory=asyncio.Queue)
    asked: list[VllmRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)

    async def generate(self, request: VllmRequest) -> AsyncIterator[Output]:
        self.asked.append(request)
        while True:
            output = await self.outputs.get()
            if isinstance(output, Exception):
                raise output
            yield output
            if output.finish:
                return

    async def add_adapter(self, adapter: AdapterFiles) -> None:
        raise AssertionError("it has no adapters")

    async def remove_adapter(self, number: int) -> None:
        raise AssertionError("it has no adapters")

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def close(self) -> None:
        pass
