"""The running step, as the layers of a model see it."""

import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import torch

from kernels.paged_attention import AttentionShape, RaggedBatch
from kernels.sgmv import AdapterTables, DeviceAdapterTables, DeviceSegments, Segments
from services.worker.device.copying.gate import ADAPTER_STALL_NS

AnySegments: TypeAlias = Segments | DeviceSegments

ALL_TARGETS = -1  # every bit


@dataclass(frozen=True, slots=True)
class LoraStep:
    """The adapters of one step.

    Attributes:
        segments: of all new tokens.
        wanted: of those whose logits are wanted.
        targets: that some adapter of the step has, see `bits_of`.
    """

    segments: AnySegments
    wanted: AnySegments
    tables: AdapterTables | DeviceAdapterTables
    targets: int = ALL_TARGETS


class Assistance(Protocol):
    """What helpers can do in one step."""

    @property
    def lines(self) -> Set[int]:
        """Of the adapters that they can read."""
        ...

    def add(
        self, layer: int, site: int, x: torch.Tensor, y: torch.Tensor, lines: frozenset[int]
    ) -> bool:
        """Let them add what the adapters of these lines add to a site's output.

        Args:
            x: ``[num_tokens, num_in]``.
            y: ``[num_tokens, num_out]``: rows of these lines are rounded once.

        Returns:
            False: they did not; nothing was added, and they will not do any more in this step.
        """
        ...

    def rest(self, segments: AnySegments, lines: frozenset[int]) -> AnySegments:
        """The segments of all other lines."""
        ...


@dataclass(slots=True)
class LayerProbe:
    """Stands in for a step to learn a model's KV layout.

    Attributes:
        layers: (KV heads, head dim) of each layer.
        shapes: how each layer makes its scores.
        num_heads: of the queries, at most.
        attended: layers that have called attention.
    """

    layers: dict[int, tuple[int, int]] = field(default_factory=dict)
    shapes: dict[int, AttentionShape] = field(default_factory=dict)
    num_heads: int = 0
    attended: set[int] = field(default_factory=set)


def _never(row: int, layer: int) -> int:
    return 1 << 62


def _has_come(pages: list[int], timeout_ns: int) -> bool:
    """For steps that await nothing."""
    return True


def _is_there(pages: list[int]) -> bool:
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
        positions: int64 ``[num_tokens]``: of each new token in its sequence.
        is_long: bool ``[num_tokens]``: whether its sequence is longer than
            `ModelInfo.short_rope_max`; None: none is.
        awaited: by row, for each layer, pages that may still be loading.
        due_in_ns: of a row and a layer, how long they may be waited for, from `begun_ns` on.
        streams: by line of the adapter tables, for each layer, pages that may still be loading.
        lines: of each row.
        has: whether pages are there.
        wait: for pages, so that what is computed next finds them there; whether they come in time.
        stall_ns, stall_at_ns: as in `StepResult`.
        failed: rows whose history or adapter did not come.
        lora: the adapters of its rows; None: all of them are the base model's.
        assistance: of helpers, for what of `streams` is not there.
        attended: layers that have called attention in this pass.
    """

    pool: torch.Tensor
    batch: RaggedBatch
    slot_pages: torch.Tensor
    slot_offsets: torch.Tensor
    positions: torch.Tensor
    is_long: torch.Tensor | None = None
    awaited: dict[int, list[list[int]]] = field(default_factory=dict)
    due_in_ns: Callable[[int, int], int] = _never
    begun_ns: int = field(default_factory=time.monotonic_ns)
    streams: dict[int, list[list[int]]] = field(default_factory=dict)
    lines: list[int] = field(default_factory=list)
    wait: Callable[[list[int], int], bool] = _has_come
    has: Callable[[list[int]], bool] = _is_there
    stall_ns: list[int] = field(default_factory=list)
    stall_at_ns: dict[int, int] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    lora: LoraStep | None = None
    assistance: Assistance | None = None
    attended: set[int] = field(default_factory=set)

    def await_history(self, layer: int) -> None:
        """See that this layer's history is there for what is computed next, for every row that
        brings some up."""
        if not self.awaited:
            return
        started_ns = time.monotonic_ns()
        for row, pages in self.awaited.items():
            left_ns = self.begun_ns + self.due_in_ns(row, layer) - time.monotonic_ns()
            if row not in self.failed and not self.wait(pages[layer], left_ns):
                self.failed.add(row)
        self._stalled(layer, started_ns)

    def away_from(self, layer: int) -> frozenset[int]:
        """Lines whose adapters are not there in this layer, and that helpers take."""
        helped = () if self.assistance is None else self.assistance.lines
        return frozenset(
            line
            for line, pages in self.streams.items()
            if line in helped and not self.has(pages[layer])
        )

    def await_adapters(self, layers: Sequence[int], others: Set[int] = frozenset()) -> None:
        """See that adapters are there in these layers for what is computed next. A line that is
        late fails its rows, and is not waited for again.

        Args:
            others: lines that are not waited for.
        """
        for layer in layers:
            started_ns = time.monotonic_ns()
            late = [
                line
                for line, pages in self.streams.items()
                if line not in others and not self.wait(pages[layer], ADAPTER_STALL_NS)
            ]
            if late:
                self.failed.update(row for row, line in enumerate(self.lines) if line in late)
                self.streams = {line: of for line, of in self.streams.items() if line not in late}
            self._stalled(layer, started_ns)

    def _stalled(self, layer: int, since_ns: int) -> None:
        self.stall_ns[layer] += time.monotonic_ns() - since_ns
        self.stall_at_ns.setdefault(layer, since_ns)


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
