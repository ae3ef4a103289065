"""The running step, as the layers of a model see it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch

from kernels.paged_attention import RaggedBatch
from services.worker.device.gate import STALL_TIMEOUT_NS, PageGate


@dataclass(slots=True)
class LayerProbe:
    """Stands in for a step to learn a model's KV layout: (KV heads, head dim) of each layer."""

    layers: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class StepContext:
    """One step.

    Attributes:
        keys, values: the pool's halves, ``[num_pages, num_kv_heads, block_tokens, head_dim]``.
        positions: ``[1, num_tokens]`` of each new token in its turn.
        slot_pages: ``[num_layers, num_tokens]`` page that takes each new token.
        slot_offsets: ``[num_tokens]`` place in that page.
        awaited: by row, for each layer, pages that may still be loading.
        failed: rows whose history did not come.
    """

    pool: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    batch: RaggedBatch
    positions: torch.Tensor
    slot_pages: torch.Tensor
    slot_offsets: torch.Tensor
    awaited: dict[int, list[list[int]]]
    gate: PageGate
    stall_ns: list[int]
    failed: set[int] = field(default_factory=set)

    def await_history(self, layer: int) -> None:
        """Wait until this layer's history is in the pool, for every row that brings some up."""
        if not self.awaited:
            return
        started_ns = time.monotonic_ns()
        for row, pages in self.awaited.items():
            if row not in self.failed and not self.gate.wait(pages[layer], STALL_TIMEOUT_NS):
                self.failed.add(row)
        self.stall_ns[layer] += time.monotonic_ns() - started_ns


_RUNNING: ContextVar[StepContext | LayerProbe] = ContextVar("running step")


@contextmanager
def running(step: StepContext | LayerProbe) -> Iterator[None]:
    """Let every layer of the model that is called meanwhile see this step."""
    before = _RUNNING.set(step)
    try:
        yield
    finally:
        _RUNNING.reset(before)


def running_step() -> StepContext | LayerProbe:
    """The step that the calling layer is part of. Any layer may ask, not attention alone.

    Raises:
        LookupError: the model was called outside a step.
    """
    return _RUNNING.get()
