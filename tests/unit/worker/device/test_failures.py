"""What was planned behind a failed row is void from the start."""

from dataclasses import replace

import numpy as np

from services.worker.core.step import StepPlan
from services.worker.device.base.tables import Failures
from tests.unit.worker.device.test_isolate import plan_of


def following(plan: StepPlan, *rows: int) -> StepPlan:
    return replace(plan, following=np.array(rows, np.int32))


def test_only_rows_that_follow_a_failed_one_are_void() -> None:
    failures = Failures()
    assert failures.void(following(plan_of(3), 0, 1)) == set()
    failures.keep(plan_of(3), {1, 2})
    assert failures.void(following(plan_of(3), 0, 1)) == {1}, "row 2 is of a turn that began anew"
    failures.keep(plan_of(3), set())
    assert failures.void(following(plan_of(3), 0, 1)) == set()


def test_a_turn_is_known_by_its_slot() -> None:
    failures = Failures()
    failures.keep(plan_of(3), {2})
    moved = replace(plan_of(2), slots=np.array([2, 0], np.int32))
    assert failures.void(following(moved, 0, 1)) == {0}
