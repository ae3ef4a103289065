"""Batching by an epoch's plan, and the plan."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.policies import make_batcher
from loadtest.policies.nexus import NexusBatcher
from loadtest.policies.nexus_plan import Share, full_batch, make_plan
from services.scheduler.core.batching.effects import Dispatch, Drop
from services.scheduler.core.batching.job import Delays, Job, ModelSpec
from tests.unit.loadtest.policies.baseline_world import World, jobs_at, offer, sizes, table

RESNET = table(1053, 5072, 20, 25_000)


def nexus(*specs: ModelSpec, num_gpus: int = 1) -> NexusBatcher:
    batcher = NexusBatcher(Delays(), epoch_ns=1000, first_epoch_ns=100)
    for spec in specs:
        batcher.add_model(spec)
    for gpu in range(num_gpus):
        assert not batcher.add_gpu(gpu, [spec.key for spec in specs], 0)
    assert not batcher.on_wake(0)
    return batcher


def test_by_name() -> None:
    assert isinstance(make_batcher("nexus"), NexusBatcher)


def test_a_gpus_batch_leaves_time_for_another_one() -> None:
    assert full_batch(RESNET) == 7
    assert full_batch(table(1, 20, 4, 25)) == 1


def test_one_model_gets_every_gpu_with_the_full_batch() -> None:
    plan = make_plan([RESNET], {"m": 1.0}, dict.fromkeys(range(8), "m"))
    assert sorted(plan) == list(range(8))
    assert all(share["m"].batch == 7 for share in plan.values())
    assert sum(share["m"].rate for share in plan.values()) == pytest.approx(8 * 7 / 12_443, 1e-3)


def test_gpus_go_by_the_rates() -> None:
    specs = [table(1053, 5072, 20, 25_000, key) for key in "ab"]
    plan = make_plan(specs, {"a": 3.0, "b": 1.0}, dict.fromkeys(range(8), "ab"))
    rates = {"a": 0.0, "b": 0.0}
    for shares in plan.values():
        for key, share in shares.items():
            rates[str(key)] += share.rate * 1e6
    assert rates["a"] / rates["b"] == pytest.approx(3, rel=0.02)
    assert sum(rates.values()) == pytest.approx(8 * 7 / 12_443 * 1e6, rel=0.1)


def test_residual_loads_share_a_gpu_within_the_shortest_duty_cycle() -> None:
    specs = [table(1, 10, 20, 100, "a"), table(1, 20, 20, 200, "b")]
    plan = make_plan(specs, {"a": 1.0, "b": 1.0}, {0: ["a", "b"]})
    shares = plan[0]
    assert set(shares) == {"a", "b"}
    busy_ns = sum(spec.batch_ns[shares[spec.key].batch] for spec in specs)
    for spec in specs:
        share = shares[spec.key]
        duty_ns = share.batch / share.rate
        assert busy_ns <= duty_ns + 1e-6
        assert busy_ns + spec.batch_ns[share.batch] <= spec.slo_ns


def test_a_gpu_gets_only_what_it_serves() -> None:
    specs = [table(1, 5, 9, 50, key) for key in "abc"]
    plan = make_plan(specs, dict.fromkeys("abc", 1.0), {0: "ab", 1: "a"})
    assert set(plan[1]) == {"a"}
    assert set(plan[0]) >= {"b"}
    assert all("c" not in shares for shares in plan.values())


def test_more_models_than_can_be_served_in_time_are_spread() -> None:
    specs = [table(1, 20, 4, 25, key) for key in "abcd"]
    plan = make_plan(specs, dict.fromkeys("abcd", 1.0), {0: "abcd", 1: "abcd"})
    assert [len(plan[gpu]) for gpu in (0, 1)] == [2, 2]
    assert plan[0]["a"] == Share(1, 1.0)


def test_jobs_are_dealt_out_evenly_and_stay_where_they_are() -> None:
    batcher = nexus(RESNET, num_gpus=2)
    effects = offer(batcher, jobs_at("m", 25_000, 6))
    assert sizes(effects) == [(0, "m", 1), (1, "m", 1)]
    assert sizes(list(batcher.on_batch_done(0, 6125))) == [(0, "m", 2)]
    assert not batcher.on_batch_done(0, 10_000)  # although two wait at GPU 1


def test_no_batch_is_larger_than_planned() -> None:
    batcher = nexus(RESNET)
    offer(batcher, jobs_at("m", 50_000, 13))
    assert sizes(list(batcher.on_batch_done(0, 6125))) == [(0, "m", 7)]


def test_heads_that_would_shrink_the_batch_are_dropped() -> None:
    batcher = nexus(RESNET)
    offer(batcher, jobs_at("m", 50_000, 1))
    urgent = jobs_at("m", 6125 + 12_442, 2)  # 1 less than a batch of seven needs
    offer(batcher, [*urgent, *jobs_at("m", 30_000, 7)])
    drop, batch = batcher.on_batch_done(0, 6125)
    assert drop == Drop(urgent, "crowded")
    assert isinstance(batch, Dispatch)
    assert len(batch.jobs) == 7


def test_models_take_turns() -> None:
    batcher = nexus(table(1, 5, 9, 500, "a"), table(1, 5, 9, 500, "b"))
    models = [batch[1] for batch in sizes(offer(batcher, jobs_at("a", 500, 40)))]
    offer(batcher, jobs_at("b", 500, 40))
    for turn in range(1, 5):
        models += [batch[1] for batch in sizes(list(batcher.on_batch_done(0, 20 * turn)))]
    assert models == ["a", "b", "a", "b", "a"]


def test_an_epochs_rates_make_the_next_plan() -> None:
    batcher = nexus(*(table(1, 5, 9, 50, key) for key in "ab"), num_gpus=4)
    jobs = [Job("a", 500, 0) for _ in range(30)] + [Job("b", 500, 0) for _ in range(10)]
    offer(batcher, jobs)
    batcher.on_wake(100)
    offer(batcher, [Job(key, 5000, 2000) for key in "ab" for _ in range(40)], 2000)
    gpus: dict[str, set[int]] = {"a": set(), "b": set()}
    for gpu in range(4):
        for dispatched in sizes(list(batcher.on_batch_done(gpu, 2100))):
            gpus[str(dispatched[1])].add(gpu)
    assert len(gpus["a"]) >= 2 * len(gpus["b"]) > 0


def test_epochs_end_when_nothing_comes() -> None:
    batcher = nexus(table(1, 5, 9, 50))
    offer(batcher, jobs_at("m", 50, 1))
    batcher.on_batch_done(0, 6)
    for at_ns in (100, 1100, 2100):
        batcher.on_wake(max(batcher.wake_at_ns, at_ns))
    assert batcher.wake_at_ns > 1_000_000


@settings(deadline=None, max_examples=40, derandomize=True)
@given(seed=st.integers(0, 2**32), gap_ns=st.sampled_from([1, 3, 10]))
@pytest.mark.parametrize("delays", [Delays(), Delays(ctrl_ns=1, data_ns=1)])
def test_nothing_is_lost_doubled_or_late(delays: Delays, seed: int, gap_ns: int) -> None:
    batcher = NexusBatcher(delays, epoch_ns=150, first_epoch_ns=50)
    World(batcher, seed).run(120, gap_ns)
