"""A step in flight on a device whose host is ahead of it, and what it gives."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from services.worker.core.step import Sampled, StepPlan, StepResult
from services.worker.device.assist.stream_assistance import StreamAssistance
from services.worker.device.base.upload import ReadBack
from services.worker.device.copying.gate import STALL_TIMEOUT_NS, PageGate
from services.worker.device.sampling.sampler import NOT_FINITE, TopLogprobs, enter_scores


@dataclass(slots=True)
class Pass:
    """What a launch finds out.

    Attributes:
        failed: rows whose history or adapter did not come.
        behind: pages that it runs behind the copies of; what they bring is known at its end.
        assistance: of helpers that are with it.
        unrecorded: as in `StepResult`.
    """

    launched_at_ns: int
    failed: set[int]
    stall_ns: list[int]
    stall_at_ns: dict[int, int] = field(default_factory=dict)
    behind: set[int] = field(default_factory=set)
    assistance: StreamAssistance | None = None
    unrecorded: str = ""


@dataclass(slots=True)
class StepChosen:
    """What a step gives, while it is copied back.

    Attributes:
        rows: that chose a token; `back` has their tokens, and each one's largest logit.
        logprobs, scores: by row, where they were asked for.
        refused: rows that no token can be chosen for within their grammar, and why.
    """

    rows: list[int]
    back: ReadBack
    logprobs: dict[int, TopLogprobs] = field(default_factory=dict)
    scores: dict[int, TopLogprobs] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class GpuLaunched:
    """Attributes:
    started_at_ns: returns when a step began that was launched and ended at these times.
    """

    plan: StepPlan
    passed: Pass
    chosen: StepChosen
    gate: PageGate
    started_at_ns: Callable[[int, int], int]

    def result(self) -> StepResult:
        """Wait until it is over."""
        plan, passed = self.plan, self.passed
        tokens, largest = self.chosen.back.wait()
        ended_at_ns = time.monotonic_ns()
        result = StepResult([None] * plan.num_rows, passed.failed, stall_ns=passed.stall_ns)
        result.stall_at_ns = passed.stall_at_ns
        result.started_at_ns = self.started_at_ns(passed.launched_at_ns, ended_at_ns)
        result.duration_ns = ended_at_ns - result.started_at_ns
        result.refused = self.chosen.refused
        result.unrecorded = passed.unrecorded
        result.assist_ns = self._see_to_helpers()
        self._see_to_pages()
        self._enter_tokens(result, tokens.tolist(), largest.isfinite().tolist())
        for row, scores in self.chosen.scores.items():
            if row not in result.failed:
                enter_scores(result, plan, row, scores.listed())
        return result

    def _see_to_helpers(self) -> int:
        """How long they were waited for; rows fail whose adapters they did not add."""
        if self.passed.assistance is None:
            return 0
        took_ns = self.passed.assistance.finish()
        if took_ns is not None:
            return took_ns
        is_theirs = np.isin(self.plan.adapters, list(self.passed.assistance.lines))
        self.passed.failed.update(np.flatnonzero(is_theirs).tolist())
        return 0

    def _see_to_pages(self) -> None:
        """Rows fail that ran behind copies which did not bring the promised bytes."""
        plan, passed = self.plan, self.passed
        if not passed.behind:
            return
        lines: list[int] = plan.adapters.tolist()
        for row, line in enumerate(lines):
            layers = [*plan.awaited.get(row, []), *plan.streams.get(line, [])]
            pages = [page for layer in layers for page in layer if page in passed.behind]
            if row not in passed.failed and not self.gate.wait(pages, STALL_TIMEOUT_NS):
                passed.failed.add(row)

    def _enter_tokens(self, result: StepResult, tokens: list[int], are_finite: list[bool]) -> None:
        failed, refused, scores = result.failed, result.refused, self.chosen.logprobs
        for row, token, is_finite in zip(self.chosen.rows, tokens, are_finite, strict=True):
            if row in failed or row in refused:
                continue
            if not is_finite:
                result.broken[row] = NOT_FINITE
                continue
            logprobs = scores[row].listed()[0] if row in scores else None
            result.sampled[row] = Sampled(token, logprobs)
