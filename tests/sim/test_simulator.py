"""The cluster simulator: every policy, the same again from the same seed, and checks that notice
what they are for.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.policies import POLICIES
from loadtest.simulator import (
    Scenario,
    Violation,
    find_goodput,
    linear_model,
)
from loadtest.simulator.arrivals import Arrivals
from loadtest.simulator.checks import check
from loadtest.simulator.gpus import EmulatedGpu
from loadtest.simulator.log import PREEMPTED, Batch, Record
from loadtest.simulator.models import MS_NS
from services.scheduler.core.batching.job import Delays
from services.scheduler.policies import DEFAULT_POLICY

RESNET = linear_model("resnet", 1.053, 5.072, 25.0)
MODELS = (
    RESNET,
    linear_model("heavy", 5.09, 18.368, 70.0),
    linear_model("flat", 7.0, 0.16, 56.0),
)
BUSY = Scenario(
    models=MODELS, num_gpus=4, seconds=1.5, cold_s=0.0, delays=Delays(2 * MS_NS, MS_NS // 20)
)
ALL_POLICIES = [*POLICIES, "timeout:5"]


def columns(record: Record) -> dict[str, list[int]]:
    """Everything that happened."""
    return {
        field.name: getattr(record, field.name).tolist()
        for field in dataclasses.fields(record)
        if isinstance(getattr(record, field.name), np.ndarray)
    }


@pytest.mark.parametrize("policy", ALL_POLICIES)
def test_busy_day(policy: str) -> None:
    """The run checks itself; more comes than can be done, and every job ends."""
    scenario = BUSY.changed(policy=policy)
    result = scenario.run(1500)
    num_ended = sum(model.num_good + model.num_bad for model in result.models)
    assert num_ended == len(scenario.arrivals(1500))
    assert 0 < result.num_good < num_ended


@pytest.mark.parametrize("policy", ALL_POLICIES)
def test_calm_day_happens_as_said(policy: str) -> None:
    result = Scenario(models=MODELS, num_gpus=6, policy=policy, seconds=1.5, cold_s=0.5).run(500)
    assert sum(model.num_late for model in result.models) == 0
    assert result.num_good > 400


@pytest.mark.parametrize("policy", ALL_POLICIES)
def test_same_seed_same_run(policy: str) -> None:
    scenario = BUSY.changed(policy=policy, seconds=0.8)
    first, second = (scenario.record(scenario.arrivals(700))[1] for _ in range(2))
    assert columns(first) == columns(second)
    other = scenario.changed(seed=2)
    assert columns(other.record(other.arrivals(700))[1]) != columns(first)


@given(
    policy=st.sampled_from(ALL_POLICIES),
    rps=st.floats(10, 3000),
    num_gpus=st.integers(1, 5),
    gamma=st.sampled_from([0.05, 0.5, 1.0, 4.0]),
    seed=st.integers(0, 1000),
    delay_ms=st.floats(0, 8),
)
@settings(max_examples=40, deadline=None)
def test_every_job_ends_once(
    policy: str,
    rps: float,
    num_gpus: int,
    gamma: float,
    seed: int,
    delay_ms: float,
) -> None:
    scenario = Scenario(
        models=MODELS,
        num_gpus=num_gpus,
        policy=policy,
        gamma=gamma,
        seconds=0.4,
        cold_s=0.0,
        seed=seed,
        delays=Delays(int(delay_ms * MS_NS)),
    )
    result = scenario.run(rps)
    num_ended = sum(model.num_good + model.num_bad for model in result.models)
    assert num_ended == len(scenario.arrivals(rps))


def test_goodput_grows_with_gpus_and_is_below_the_bound() -> None:
    scenario = Scenario(models=(RESNET,), num_gpus=2, seconds=4.0)
    few, more = (find_goodput(scenario.changed(num_gpus=n), 0.02) for n in (2, 4))
    assert few.result is not None and few.result.worst_bad_rate <= 0.01
    assert 1.8 * few.rps < more.rps < 4 * 16e3 / RESNET.batch_ns()[16] * MS_NS
    above = scenario.run(1.3 * few.rps)
    assert above.worst_bad_rate > 0.01
    assert scenario.run(1.3 * few.rps, gives_up=True).was_given_up


def test_no_goodput_when_nothing_can_be_in_time() -> None:
    impossible = linear_model("slow", 10.0, 50.0, 40.0)
    found = find_goodput(Scenario(models=(impossible,), num_gpus=2, seconds=2.0))
    assert found.result is None and found.rps == 0


def batch(number: int, here_at_ns: int, run_ns: int) -> Batch:
    return Batch(number, 0, 0, [], here_at_ns, 0, 0, here_at_ns, run_ns)


def test_gpu_runs_what_it_has_in_order_and_moves_up_after_a_preemption() -> None:
    gpu = EmulatedGpu(0)
    first, second, third = batch(1, 0, 100), batch(2, 10, 100), batch(3, 20, 100)
    for each in (first, second, third):
        gpu.take(each)
    assert (second.start_ns, third.end_ns) == (100, 300)
    assert gpu.preempt(second, 50) == [third]  # it had not begun
    assert (second.end, second.end_ns - second.start_ns) == (PREEMPTED, 0)
    assert (third.start_ns, third.end_ns) == (100, 200)
    assert gpu.preempt(first, 60) == [third]
    assert (first.end_ns, third.start_ns) == (60, 60)


def two_batches(**changes: Any) -> Record:
    """Jobs 0 and 1 in one batch of 10 ms, job 2 in the next; some columns are changed."""
    ms = MS_NS
    model = linear_model("m", 2.0, 6.0, 20.0)
    values: dict[str, list[int]] = {
        "number": [1, 2],
        "gpu": [0, 0],
        "model": [0, 0],
        "size": [2, 1],
        "end": [0, 0],
        "sent_at_ns": [2 * ms, 12 * ms],
        "believed_start_ns": [2 * ms, 12 * ms],
        "believed_end_ns": [12 * ms, 20 * ms],
        "start_ns": [2 * ms, 12 * ms],
        "end_ns": [12 * ms, 20 * ms],
        "refs": [0, 1, 2],
        "drop_at_ns": [],
        "drop_reason": [],
        "drop_size": [],
        "drop_refs": [],
        **changes,
    }
    arrays = {name: np.array(column, dtype=np.int64) for name, column in values.items()}
    instants = np.array([0, ms, 2 * ms], dtype=np.int64)
    arrivals = Arrivals(instants, np.zeros(3, dtype=np.int64), 100 * ms)
    return Record(models=(model,), arrivals=arrivals, num_gpus=1, **arrays)


def test_a_sound_record_passes() -> None:
    check(two_batches(), seed=1, is_whole=True)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"refs": [0, 1, 1]}, "ended more than once"),
        ({"drop_refs": [1], "drop_reason": [0]}, "ended more than once"),
        ({"refs": [0, 1], "size": [1, 1]}, "were lost"),
        ({"start_ns": [2 * MS_NS, 11 * MS_NS]}, "overlap"),
        ({"believed_end_ns": [12 * MS_NS, 23 * MS_NS]}, "too late"),
        ({"start_ns": [3 * MS_NS, 12 * MS_NS]}, "at another time than said"),
    ],
)
def test_checks_notice(changes: dict[str, list[int]], what: str) -> None:
    with pytest.raises(Violation, match=rf"{what}.*seed 7"):
        check(two_batches(**changes), seed=7, is_whole=True)


def test_default_policy_is_known() -> None:
    assert Scenario(models=MODELS, num_gpus=1).policy == DEFAULT_POLICY
