"""Eager batching with preemption."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.policies import make_batcher
from loadtest.policies.shepherd import Preempt, ShepherdBatcher
from services.scheduler.core.batching.effects import Dispatch, Drop
from services.scheduler.core.batching.job import Delays, Job, ModelSpec
from tests.unit.loadtest.policies.baseline_world import World, jobs_at, offer, sizes, table


def shepherd(*specs: ModelSpec, num_gpus: int = 1, preempt_factor: float = 3) -> ShepherdBatcher:
    batcher = ShepherdBatcher(Delays(), preempt_factor)
    for spec in specs:
        batcher.add_model(spec)
    for gpu in range(num_gpus):
        assert not batcher.add_gpu(gpu, [spec.key for spec in specs], 0)
    return batcher


def test_by_name() -> None:
    assert isinstance(make_batcher("shepherd"), ShepherdBatcher)


def test_a_free_gpu_runs_at_once_the_lowest_first() -> None:
    batcher = shepherd(table(1, 5, 9, 50), num_gpus=2)
    assert sizes(offer(batcher, jobs_at("m", 50, 3))) == [(0, "m", 1), (1, "m", 1)]


def test_a_freed_gpu_runs_the_largest_candidate() -> None:
    batcher = shepherd(table(1, 5, 9, 50, "a"), table(1, 5, 9, 50, "b"))
    offer(batcher, [*jobs_at("a", 50, 2), *jobs_at("b", 50, 2)])
    assert sizes(list(batcher.on_batch_done(0, 6))) == [(0, "b", 2)]


@pytest.mark.parametrize("urgent", ["a", "b"])
def test_of_equal_candidates_the_more_urgent(urgent: str) -> None:
    batcher = shepherd(table(1, 5, 9, 50, "a"), table(1, 5, 9, 50, "b"))
    offer(batcher, jobs_at("a", 50, 1))
    offer(batcher, [Job(key, 40 if key == urgent else 50, 0) for key in "ab"])
    assert sizes(list(batcher.on_batch_done(0, 6))) == [(0, urgent, 1)]


def test_urgent_jobs_are_skipped_for_a_larger_batch_and_stay() -> None:
    batcher = shepherd(table(1, 5, 9, 50), preempt_factor=9)
    offer(batcher, [Job("m", 50, 0), Job("m", 12, 0), Job("m", 30, 0), Job("m", 31, 0)])
    (batch,) = batcher.on_batch_done(0, 6)
    assert isinstance(batch, Dispatch)
    assert [job.deadline_ns for job in batch.jobs] == [30, 31]
    assert batcher.wake_at_ns == 7
    (drop,) = batcher.on_wake(7)
    assert isinstance(drop, Drop)
    assert [job.deadline_ns for job in drop.jobs] == [12]


def test_three_times_as_large_preempts() -> None:
    batcher = shepherd(table(1, 5, 9, 50, "a"), table(1, 5, 9, 50, "b"))
    running = jobs_at("a", 40, 1)
    offer(batcher, running)
    assert not offer(batcher, jobs_at("b", 50, 2), 1)
    preempt, batch = batcher.on_job(Job("b", 52, 2), 2)
    assert list[object]([preempt]) == [Preempt(1, 0)]
    assert isinstance(batch, Dispatch)
    assert (batch.number, batch.model, len(batch.jobs), batch.start_at_ns) == (2, "b", 3, 2)
    assert batcher.wake_at_ns == 35, "the preempted job is late then"
    (again,) = batcher.on_batch_done(0, 10)
    assert isinstance(again, Dispatch)
    assert again.jobs == running


def test_the_preempted_are_dropped_if_they_cannot_make_it_any_more() -> None:
    batcher = shepherd(table(1, 5, 9, 50, "a"), table(1, 5, 9, 50, "b"))
    running = jobs_at("a", 7, 1)
    offer(batcher, running)
    effects = offer(batcher, jobs_at("b", 50, 3), 2)
    assert [type(effect) for effect in effects] == [Preempt, Dispatch, Drop]
    assert effects[2] == Drop(running, "late")


def test_the_smallest_batch_is_preempted_and_of_those_the_last_begun() -> None:
    batcher = shepherd(table(0, 20, 9, 50, "a"), table(1, 5, 9, 50, "b"), num_gpus=3)
    for now_ns in (0, 1, 2):
        offer(batcher, jobs_at("a", 90, 1, now_ns), now_ns)
    offer(batcher, jobs_at("a", 90, 2, 3), 3)
    batcher.on_batch_done(0, 20)  # now two of "a" on GPU 0
    effects = offer(batcher, jobs_at("b", 60, 3, 20), 20)
    assert list[object](effects[:1]) == [Preempt(3, 2)]


def test_what_is_about_to_end_or_only_half_as_small_is_left_alone() -> None:
    batcher = shepherd(table(1, 5, 9, 50, "a"), table(1, 5, 9, 50, "b"))
    offer(batcher, jobs_at("a", 50, 1))
    assert not offer(batcher, jobs_at("b", 50, 3), 6)
    eager = shepherd(table(1, 5, 9, 50, "a"), table(1, 5, 9, 50, "b"), preempt_factor=4)
    offer(eager, jobs_at("a", 50, 1))
    assert not offer(eager, jobs_at("b", 50, 3), 1)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(seed=st.integers(0, 2**32), gap_ns=st.sampled_from([1, 3, 10]))
@pytest.mark.parametrize("delays", [Delays(), Delays(ctrl_ns=1, data_ns=1)])
def test_nothing_is_lost_doubled_or_late(delays: Delays, seed: int, gap_ns: int) -> None:
    World(ShepherdBatcher(delays), seed).run(120, gap_ns)


def test_preemption_happens_in_those_days_and_its_jobs_run_or_are_dropped() -> None:
    counts: Counter[str] = Counter()
    for seed in range(30):
        world = World(ShepherdBatcher(Delays()), seed)
        world.run(200, 2)
        counts["preempted"] += len(world.preempted)
        counts.update(world.outcome.values())
    assert counts["preempted"] > 30
    assert counts["run"] > 1000
