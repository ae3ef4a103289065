"""Recorded passes.

Launching a model's kernels one by one takes the host longer than a GPU takes to run them for a few
hundred tokens. A pass is the same launches each time, on other numbers: it is recorded once for
each of a few sizes, and then launched by one call. Passes of more tokens are bound by the device in
either case.
Source: CUDA graphs, as every GPU engine has them.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from services.worker.core.step import StepPlan
from services.worker.device.base.step import StepContext
from services.worker.device.gpu.pass_inputs import BUCKETS, PassInputs, PassKind

log = logging.getLogger(__name__)

Launch = Callable[[], torch.Tensor]
FREE_SHARE = 0.25  # the rest is for the largest step, and for gaps
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
        bytes_max: that recordings may take together; no more than a share of what is free when
            they begin.
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
    _bytes_max: int | None = None
    _taken_bytes: int = 0
    _why_stopped: str = ""

    def __post_init__(self) -> None:
        self._want(0, is_cut=False)

    def find(self, plan: StepPlan, rank: int) -> RecordedPass | str:
        """The recording that a plan can run as, or why there is none.

        Args:
            rank: of its adapters at most, a power of two; 0: it has none.
        """
        if reason := self._why_not(plan):
            return reason
        kind = self._kind(plan, rank)
        higher = {known for known, _ in self._variants if 0 < kind.rank < known}
        for each in sorted({kind.rank, *higher}):
            if (found := self._passes.get(kind._replace(rank=each))) is not None:
                return found
        self._want(kind.rank, is_cut=kind.is_cut)
        if kind in self._failed:
            return "failed"
        return self._why_stopped or "pending"

    @property
    def num_left(self) -> int:
        """Kinds that are still to be recorded."""
        return 0 if self._why_stopped else len(self._pending)

    def record_next(self) -> bool:
        """Record one more kind. A failure costs speed, and a warning.

        Returns:
            Whether that went well; if not, the device is to be looked at.
        """
        if not self.num_left:
            return True
        kind, started = self._pending.popleft(), time.monotonic()
        try:
            self._record(kind)
        except torch.OutOfMemoryError:
            self._fail(kind, "memory")
            return True
        except Exception as error:
            self._fail(kind, str(error))
            return False
        log.debug("recorded a pass", extra={**kind._asdict(), "took_s": time.monotonic() - started})
        if not self.num_left:
            fields = {"passes": len(self._passes), "bytes": self._taken_bytes}
            log.info("recorded passes", extra={**fields, "left": len(self._pending)})
        return True

    def _record(self, kind: PassKind) -> None:
        recorder = self.recorder
        free_bytes = recorder.free_bytes()
        if self._bytes_max is None:
            self._bytes_max = min(recorder.bytes_max, int(FREE_SHARE * free_bytes))
        plain = self.make(kind)
        parts = [PassPart(part.layers, recorder.record(part.launch)) for part in plain.parts]
        self._passes[kind] = RecordedPass(plain.inputs, plain.step, parts)
        self._taken_bytes += max(free_bytes - recorder.free_bytes(), 0)
        if self._taken_bytes >= self._bytes_max:
            self._why_stopped = "memory"

    def _fail(self, kind: PassKind, why: str) -> None:
        self._failed.add(kind)
        if why == "memory":
            self._why_stopped = why
        elif not self._passes and len(self._failed) == FAILURES_MAX:
            self._why_stopped = "failed"
        log.warning("a pass could not be recorded", extra={**kind._asdict(), "why": why})

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
        is_cut = bool(plan.awaited or plan.streams)
        is_decode = not is_cut and plan.num_tokens == plan.num_rows and None not in plan.sampling
        sizes = self._decodes() if is_decode else self.recorder.sizes
        size = next(size for size in sizes if size >= plan.num_tokens)
        return PassKind(size, is_decode, rank, is_cut)

    def _decodes(self) -> tuple[int, ...]:
        sizes = self.recorder.sizes
        return (*(size for size in sizes if size < self.rows_max), self.rows_max)

    def _want(self, rank: int, *, is_cut: bool) -> None:
        """Record passes with adapters of such a rank, or cut ones, from now on: the smallest
        first."""
        if (rank, is_cut) in self._variants:
            return
        self._variants.add((rank, is_cut))
        decodes, sizes = self._decodes(), self.recorder.sizes
        for size in sorted({*sizes, *decodes}):
            if size in decodes and not is_cut:
                self._pending.append(PassKind(size, True, rank))
            if size in sizes:
                self._pending.append(PassKind(size, False, rank, is_cut))
