"""vLLM, as far as it is used here."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from services.worker.core.vllm.adapters import AdapterRoom
from services.worker.core.vllm.replies import Output
from services.worker.core.vllm.requests import AdapterFiles, VllmRequest
from services.worker.core.vllm.status import VllmCounts
from services.worker.device.base.executor import ModelInfo
from services.worker.vllm.link import Peer
from shared.errors import SymphonyError


class VllmEngine(Protocol):
    """vLLM, as far as it is used here; `vllm_engine.AsyncEngine` is the real one.

    Attributes:
        counts: of its KV cache and its requests, as it reported last.
        peers: its KV connectors: the scheduler's, and each rank's in order; none: its KV stays in
            its own cache.
        adapter_room: for how many adapters it was started.
    """

    info: ModelInfo
    counts: VllmCounts
    peers: Sequence[Peer]
    adapter_room: AdapterRoom

    def generate(self, request: VllmRequest) -> AsyncIterator[Output]:
        """The outputs of a request, one for each step that gave it tokens.

        Raises:
            InvalidRequest: vLLM does not take it.
            EngineGone: its engine has ended.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request, if it is there."""
        ...

    async def add_adapter(self, adapter: AdapterFiles) -> None:
        """Load an adapter, before requests run on it.

        Raises:
            AdapterUnavailable: vLLM cannot load it.
            EngineGone: its engine has ended.
        """
        ...

    async def remove_adapter(self, number: int) -> None:
        """Free an adapter's place; no request runs on it.

        Raises:
            EngineGone: its engine has ended.
        """
        ...

    def close(self) -> None:
        """End its processes."""
        ...


class AdapterUnavailable(SymphonyError):
    """An adapter that a turn runs on cannot be loaded."""

    code = "adapter_unavailable"
    http_status = 503


class EngineGone(SymphonyError):
    """vLLM's engine process has ended: nothing can be computed any more."""
