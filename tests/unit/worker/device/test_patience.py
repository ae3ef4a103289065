"""How long a pass waits for the history of its rows."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from kernels.paged_attention import RaggedBatch
from services.worker.core.step import StepPlan, TableEntries
from services.worker.device.base import step as of_step
from services.worker.device.base.step import StepContext

MS = 1_000_000
NONE = np.zeros(0, np.int32)
EMPTY = StepPlan(
    turn_ids=[],
    slots=NONE,
    tokens=NONE,
    following=NONE,
    carried=NONE,
    query_starts=NONE,
    context_lens=NONE,
    sampling=[],
    scoring={},
    awaited={},
    entries=TableEntries(NONE, NONE, NONE),
    adapters=NONE,
)


class Clock:
    """Moves only while somebody waits."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.arrives_at_ns: dict[int, int] = {}
        self.waits: list[tuple[list[int], int]] = []

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wait(self, pages: list[int], timeout_ns: int) -> bool:
        """Until these pages are there, or so long."""
        self.waits.append((pages, timeout_ns))
        at_ns = max((self.arrives_at_ns[page] for page in pages), default=0)
        end_ns = self.now_ns + max(timeout_ns, 0)
        self.now_ns = max(self.now_ns, min(at_ns, end_ns))
        return at_ns <= end_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(of_step, "time", clock)
    return clock


def pass_of(clock: Clock, awaited: dict[int, list[list[int]]], **told: Any) -> StepContext:
    """Of two rows and two layers."""
    nothing = torch.zeros(0)
    plan = replace(EMPTY, **told)
    return StepContext(
        pool=nothing,
        batch=RaggedBatch([0], [], [], nothing),
        slot_pages=nothing,
        slot_offsets=nothing,
        positions=nothing,
        awaited=awaited,
        due_in_ns=partial(plan.due_in_ns, num_layers=2),
        begun_ns=clock.now_ns,
        wait=clock.wait,
        stall_ns=[0, 0],
    )


def test_a_rows_patience_is_for_all_its_layers_together(clock: Clock) -> None:
    clock.arrives_at_ns = {1: 6 * MS, 2: 9 * MS, 3: 12 * MS}
    patience = {0: 13 * MS, 1: 10 * MS}
    step = pass_of(clock, {0: [[1], [3]], 1: [[2], []]}, patience_ns=patience)
    step.await_history(0)
    assert not step.failed and step.stall_ns == [9 * MS, 0]
    step.await_history(1)
    assert not step.failed and step.stall_ns == [9 * MS, 3 * MS]
    assert step.stall_at_ns == {0: 0, 1: 9 * MS}
    assert clock.waits == [([1], 13 * MS), ([2], 4 * MS), ([3], 4 * MS), ([], -2 * MS)]


def test_a_host_ahead_of_its_device_waits_until_the_device_will_need_them(clock: Clock) -> None:
    clock.arrives_at_ns = {1: 0, 2: 55 * MS}
    told = {"patience_ns": {0: 10 * MS}, "starts_in_ns": 6 * MS, "pass_ns": 80 * MS}
    step = pass_of(clock, {0: [[1], [2]]}, **told)
    step.await_history(0)
    step.await_history(1)
    assert not step.failed
    assert clock.waits == [([1], 16 * MS), ([2], 56 * MS)]


def test_a_row_that_is_out_of_patience_fails_alone_and_is_waited_for_no_more(clock: Clock) -> None:
    clock.arrives_at_ns = {1: 50 * MS, 2: 50 * MS, 3: 0}
    patience = {0: 20 * MS, 1: 20 * MS}
    step = pass_of(clock, {0: [[1], [2]], 1: [[3], [3]]}, patience_ns=patience)
    step.await_history(0)
    step.await_history(1)
    assert step.failed == {0} and clock.now_ns == 20 * MS
