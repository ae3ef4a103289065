"""Queues in order of deadlines, and the timers of their heads."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.policies.fifo import DeadlineQueue, DropTimers
from services.scheduler.core.batching.job import NEVER_NS, Delays, Job
from tests.unit.loadtest.policies.baseline_world import table

DEADLINES = st.lists(st.integers(0, 40), max_size=20)


def queue_of(deadlines: Sequence[int], slack_ns: int = 0) -> DeadlineQueue:
    queue = DeadlineQueue(table(1, 5, 8, 50), Delays(ctrl_ns=1), slack_ns)
    for deadline_ns in deadlines:
        queue.push(Job("m", deadline_ns, 0))
    return queue


def deadlines_of(jobs: Sequence[Job]) -> list[int]:
    return [job.deadline_ns for job in jobs]


@settings(deadline=None, derandomize=True)
@given(deadlines=DEADLINES)
def test_jobs_are_in_order_of_deadlines(deadlines: list[int]) -> None:
    assert deadlines_of(list(queue_of(deadlines).jobs)) == sorted(deadlines)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(deadlines=DEADLINES, slack_ns=st.integers(0, 3))
def test_the_largest_batch_is_the_first_of_the_largest(deadlines: list[int], slack_ns: int) -> None:
    queue, ordered = queue_of(deadlines, slack_ns), sorted(deadlines)
    fitting = [
        (-size, skipped)
        for skipped in range(len(ordered))
        for size in range(1, min(len(ordered) - skipped, 8) + 1)
        if 1 + 5 + size + slack_ns <= ordered[skipped]
    ]
    size, skipped = min(fitting, default=(0, 0))
    assert queue.largest(0) == (skipped, -size)


@settings(deadline=None, derandomize=True)
@given(deadlines=DEADLINES, num_skipped=st.integers(0, 20), size=st.integers(0, 20))
def test_a_batch_is_taken_out_and_the_skipped_stay(
    deadlines: list[int], num_skipped: int, size: int
) -> None:
    queue, ordered = queue_of(deadlines), sorted(deadlines)
    num_skipped = min(num_skipped, len(ordered))
    size = min(size, len(ordered) - num_skipped)
    batch = deadlines_of(queue.take(num_skipped, size))
    assert batch == ordered[num_skipped : num_skipped + size]
    assert deadlines_of(list(queue.jobs)) == ordered[:num_skipped] + ordered[num_skipped + size :]


def test_timers_find_the_late_and_go_on_to_the_next() -> None:
    timers, queue = DropTimers(), queue_of([20, 10, 30], slack_ns=2)
    timers.arm(queue)
    timers.arm(queue)  # has one already
    assert timers.next_at_ns == 2  # 10 - 7 - 2 + 1
    assert timers.due(1) == []
    assert deadlines_of(timers.due(2)) == [10]
    assert deadlines_of(timers.due(12)) == [20]
    queue.take(0, len(queue.jobs))
    assert timers.due(50) == []
    assert timers.next_at_ns == NEVER_NS


def test_a_more_urgent_head_sets_an_earlier_timer() -> None:
    timers, queue = DropTimers(), queue_of([30])
    timers.arm(queue)
    queue.push(Job("m", 10, 0))
    timers.arm(queue)
    assert timers.next_at_ns == 4
    assert deadlines_of(timers.due(4)) == [10]
