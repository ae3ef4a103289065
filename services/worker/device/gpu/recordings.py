"""Recorded passes.

Launching a model's kernels one by one takes the host longer than a GPU takes to run them for a few
hundred tokens. A pass is the same launches each time, on other numbers: it is recorded once for
each of a few sizes, and then launched by one call. Passes of more tokens are bound by the device,
whoever launches them.
Source: CUDA graphs, as every GPU engine has them.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from services.worker.core.adapters.image import NO_LINE
from services.worker.core.step import StepPlan
from services.worker.device.base.step import StepContext
from services.worker.device.gpu.pass_inputs import BUCKETS, PassInputs, PassKind

log = logging.getLogger(__name__)

Launch = Callable[[], torch.Tensor]
FAILURES_MAX = 3  # with no recording made: then this model's passes cannot be recorded


@dataclass(frozen=True, slots=True)
class PassPart:
    """Launches of some layers that follow each other: the last one's give logits."""

    layers: range
    launch: Launch


@dataclass(frozen=True, slots=True)
class RecordedPass:
    """Attributes:
    step: as its layers see it, on the memory of `inputs`.
    """

    inputs: PassInputs
    step: StepContext
    parts: list[PassPart]

    def run(self, packed: torch.Tensor, before: Callable[[range], None]) -> torch.Tensor:
        """Logits ``[rows, vocab]``, which the next launch overwrites.

        Args:
            packed: see `PassInputs.packed`.
            before: called with the layers that are launched next.
        """
        self.inputs.packed.copy_(packed)
        for part in self.parts:
            before(part.layers)
            logits = part.launch()
        return logits


@dataclass(frozen=True, slots=True)
class Recorder:
    """What records, on a device.

    Attributes:
        record: makes of a launch one that is repeated by a call; see `cuda_recorder`.
        free_bytes: of the device.
        bytes_max: that recordings may take together.
        sizes: tokens of the passes that are recorded, rising.
    """

    record: Callable[[Launch], Launch]
    free_bytes: Callable[[], int]
    bytes_max: int
    sizes: tuple[int, ...] = BUCKETS


@dataclass(slots=True)
class Recordings:
    """Recorded passes of one model.

    Passes of the base model are recorded without being asked for. Those with adapters and those
    that wait for pages follow when the first such pass comes, which is launched kernel by kernel.

    Attributes:
        rows_max: rows of a pass.
        make: the parts of a kind of pass, not recorded yet.
        can_cut: whether its layers can be launched in groups.
    """

    rows_max: int
    make: Callable[[PassKind], RecordedPass]
    recorder: Recorder
    can_cut: bool
    _passes: dict[PassKind, RecordedPass] = field(default_factory=dict)
    _failed: set[PassKind] = field(default_factory=set)
    _variants: set[tuple[int, bool]] = field(default_factory=set)
    _pending: deque[PassKind] = field(default_factory=deque)
    _taken_bytes: int = 0
    _why_stopped: str = ""

    def __post_init__(self) -> None:
        self._want(0, is_cut=False)

    def find(self, plan: StepPlan, rank: int) -> RecordedPass | str:
        """The recording that a plan can run as, or why there is none.

        Args:
            rank: largest of the adapters that there have been, a power of two.
        """
        if reason := self._why_not(plan):
            return reason
        kind = self._kind(plan, rank)
        if kind in self._passes:
            return self._passes[kind]
        self._want(kind.rank, is_cut=kind.is_cut)
        if kind in self._failed:
            return "failed"
        return self._why_stopped or "pending"

    @property
    def num_left(self) -> int:
        """Kinds that are still to be recorded."""
        return 0 if self._why_stopped else len(self._pending)

    def record_next(self) -> None:
        """Record one more kind. A failure costs speed, and a warning."""
        if not self.num_left:
            return
        kind, recorder = self._pending.popleft(), self.recorder
        started, free_bytes = time.monotonic(), recorder.free_bytes()
        try:
            plain = self.make(kind)
            parts = [PassPart(part.layers, recorder.record(part.launch)) for part in plain.parts]
        except Exception as error:
            self._failed.add(kind)
            if isinstance(error, torch.OutOfMemoryError):
                self._why_stopped = "memory"
            elif not self._passes and len(self._failed) == FAILURES_MAX:
                self._why_stopped = "failed"
            log.warning("a pass could not be recorded", extra={**kind._asdict(), "why": str(error)})
            return
        self._passes[kind] = RecordedPass(plain.inputs, plain.step, parts)
        self._taken_bytes += max(free_bytes - recorder.free_bytes(), 0)
        if self._taken_bytes >= recorder.bytes_max:
            self._why_stopped = "memory"
        log.debug("recorded a pass", extra={**kind._asdict(), "took_s": time.monotonic() - started})
        if not self.num_left:
            fields = {"passes": len(self._passes), "bytes": self._taken_bytes}
            log.info("recorded passes", extra={**fields, "left": len(self._pending)})

    def _why_not(self, plan: StepPlan) -> str:
        if plan.num_tokens > self.recorder.sizes[-1]:
            return "long"
        if plan.scoring:
            return "scores"
        if plan.assists:
            return "helpers"
        if (plan.awaited or plan.streams) and not self.can_cut:
            return "loading"
        return ""

    def _kind(self, plan: StepPlan, rank: int) -> PassKind:
        own_rank = rank if bool((plan.adapters != NO_LINE).any()) else 0
        is_cut = bool(plan.awaited or plan.streams)
        is_decode = not is_cut and plan.num_tokens == plan.num_rows and None not in plan.sampling
        sizes = self._decodes() if is_decode else self.recorder.sizes
        size = next(size for size in sizes if size >= plan.num_tokens)
        return PassKind(size, is_decode, own_rank, is_cut)

    def _decodes(self) -> tuple[int, ...]:
        sizes = self.recorder.sizes
        return (*(size for size in sizes if size < self.rows_max), self.rows_max)

    def _want(self, rank: int, *, is_cut: bool) -> None:
        """Record passes with adapters of such a rank, or cut ones, from now on: the smallest first.
        What was recorded for lower ranks serves no pass any more."""
        if (rank, is_cut) in self._variants:
            return
        self._variants.add((rank, is_cut))
        decodes, sizes = self._decodes(), self.recorder.sizes
        for size in sorted({*sizes, *decodes}):
            if size in decodes and not is_cut:
                self._pending.append(PassKind(size, True, rank))
            if size in sizes:
                self._pending.append(PassKind(size, False, rank, is_cut))
        if rank:
            self._pending = deque(each for each in self._pending if not 0 < each.rank < rank)
            for kind in [each for each in self._passes if 0 < each.rank < rank]:
                del self._passes[kind]
