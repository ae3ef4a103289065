"""The running step, as the layers of a model see it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch

from kernels.paged_attention import RaggedBatch


@dataclass(slots=True)
class LayerProbe:
    """Stands in for a step to learn a model's KV layout.

    Attributes:
        layers: (KV heads, head dim) of each layer.
        num_heads: of the queries, at most.
    """

    layers: dict[int, tuple[int, int]] = field(default_factory=dict)
    num_heads: int = 0


def _has_come(pages: list[int]) -> bool:
    """For steps that await nothing."""
    return True


@dataclass(slots=True)
class StepContext:
    """One step.

    Attributes:
        pool: ``[num_pages, 2, num_kv_heads, block_tokens, head_dim]``.
        slot_pages: int32 ``[num_layers, num_tokens]``: page that takes each new token; negative:
            none.
        slot_offsets: int32 ``[num_tokens]``: place in that page.
        awaited: by row, for each layer, pages that may still be loading.
        wait: for pages, so that what is computed next finds them there; whether they come.
        failed: rows whose history did not come.
    """

    pool: torch.Tensor
    batch: RaggedBatch
    slot_pages: torch.Tensor
    slot_offsets: torch.Tensor
    awaited: dict[int, list[list[int]]] = field(default_factory=dict)
    wait: Callable[[list[int]], bool] = _has_come
    stall_ns: list[int] = field(default_factory=list)
    failed: set[int] = field(default_factory=set)

    def await_history(self, layer: int) -> None:
        """See that this layer's history is there for what is computed next, for every row that
        brings some up."""
        if not self.awaited:
            return
        started_ns = time.monotonic_ns()
        for row, pages in self.awaited.items():
            if row not in self.failed and not self.wait(pages[layer]):
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
