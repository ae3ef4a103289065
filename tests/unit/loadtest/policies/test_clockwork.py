"""Central batching by the earliest latest moment."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.policies import make_batcher
from loadtest.policies.clockwork import ClockworkBatcher
from services.scheduler.core.batching.effects import Dispatch, Drop
from services.scheduler.core.batching.job import Delays, Job, ModelSpec
from tests.unit.loadtest.policies.baseline_world import World, jobs_at, offer, sizes, table


def clockwork(
    *specs: ModelSpec, num_gpus: int = 1, ahead_ns: int = 0, slack_ns: int = 0
) -> ClockworkBatcher:
    batcher = ClockworkBatcher(Delays(), ahead_ns, slack_ns)
    for spec in specs:
        batcher.add_model(spec)
    for gpu in range(num_gpus):
        assert not batcher.add_gpu(gpu, [spec.key for spec in specs], 0)
    return batcher


def test_by_name_with_the_published_constants() -> None:
    batcher = make_batcher("clockwork")
    batcher.add_model(table(1_000_000, 5_000_000, 9, 25_000_000))
    batcher.add_gpu(0, ["m"], 0)
    effects = offer(batcher, jobs_at("m", 25_000_000, 3))
    # Bound to the GPU as long as it has less than 10 ms to do.
    assert sizes(effects) == [(0, "m", 1), (0, "m", 1)]


def test_looks_ahead_only_so_far() -> None:
    batcher = clockwork(table(1, 5, 9, 50), ahead_ns=8)
    assert sizes(offer(batcher, jobs_at("m", 50, 5))) == [(0, "m", 1), (0, "m", 1)]
    assert batcher.wake_at_ns == 4  # 8 before the second batch ends
    assert sizes(list(batcher.on_wake(4))) == [(0, "m", 3)]


def test_the_gpu_that_is_free_first_takes_the_job() -> None:
    batcher = clockwork(table(1, 5, 9, 50), num_gpus=2, ahead_ns=100)
    assert [gpu for gpu, _, _ in sizes(offer(batcher, jobs_at("m", 50, 4)))] == [0, 1, 0, 1]


def test_of_one_models_candidates_the_largest_has_the_earliest_latest_moment() -> None:
    batcher = clockwork(table(1, 5, 9, 50))
    offer(batcher, jobs_at("m", 50, 5))
    assert sizes(list(batcher.on_batch_done(0, 6))) == [(0, "m", 4)]


def test_of_two_models_the_more_urgent_candidate_however_small() -> None:
    batcher = clockwork(table(1, 5, 9, 50, "a"), table(1, 5, 9, 50, "b"))
    offer(batcher, [*jobs_at("a", 50, 6), *jobs_at("b", 30, 1)])
    assert sizes(list(batcher.on_batch_done(0, 6))) == [(0, "b", 1)]


def test_a_small_batch_goes_first_if_its_latest_moment_is_closer() -> None:
    # A backlog: the first can still run alone (latest 6), the other four only without it (11).
    batcher = clockwork(table(1, 5, 9, 50))
    offer(batcher, [Job("m", 50, 0), Job("m", 12, 0), *jobs_at("m", 20, 4)])
    assert sizes(list(batcher.on_batch_done(0, 6))) == [(0, "m", 1)]


def test_the_passed_over_are_given_up() -> None:
    # At 7 the first could run alone until 12; two of those behind it until 10, and without it.
    batcher = clockwork(ModelSpec("m", [0, 5, 11], slo_ns=50))
    first = Job("m", 17, 0)
    offer(batcher, [Job("m", 50, 0), first, *jobs_at("m", 21, 2)])
    drop, batch = batcher.on_batch_done(0, 7)
    assert drop == Drop([first], "crowded")
    assert isinstance(batch, Dispatch)
    assert len(batch.jobs) == 2


def test_aims_at_an_instant_before_the_deadline() -> None:
    batcher = clockwork(table(1, 5, 9, 50), slack_ns=4)
    in_time, late = Job("m", 10, 0), Job("m", 9, 0)
    assert offer(batcher, [late]) == [Drop([late], "late")]
    assert len(sizes(offer(batcher, [in_time]))) == 1


def test_a_batch_is_as_large_as_that_instant_allows() -> None:
    batcher = clockwork(table(1, 5, 9, 50), slack_ns=4)
    offer(batcher, [Job("m", 50, 0), *jobs_at("m", 17, 3)])
    assert sizes(list(batcher.on_batch_done(0, 6))) == [(0, "m", 2)]


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    gap_ns=st.sampled_from([1, 3, 10]),
    ahead_ns=st.sampled_from([0, 5, 20]),
    slack_ns=st.sampled_from([0, 3]),
)
@pytest.mark.parametrize("delays", [Delays(), Delays(ctrl_ns=1, data_ns=1)])
def test_nothing_is_lost_doubled_or_late(
    delays: Delays, seed: int, gap_ns: int, ahead_ns: int, slack_ns: int
) -> None:
    world = World(ClockworkBatcher(delays, ahead_ns, slack_ns), seed, queue_max=100)
    world.run(120, gap_ns)
