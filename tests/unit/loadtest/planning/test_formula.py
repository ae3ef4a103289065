"""What arithmetic says: more of anything never needs fewer GPUs, and what cannot be is named."""

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.planning.demand import Demand
from loadtest.planning.formula import Estimate, estimate
from loadtest.planning.machines import Machines
from loadtest.planning.targets import Targets
from shared.errors import InvalidRequest
from shared.profiles import PROFILES

A100 = PROFILES["a100-llama3.1-8b"]
TARGETS = Targets(ttft_ms=1000.0, tpot_ms=50.0)
demands = st.builds(
    Demand,
    users=st.integers(1, 100_000),
    context=st.integers(1, 60_000),
    reply=st.integers(1, 2000),
)


def of(demand: Demand, targets: Targets = TARGETS, machines: Machines | None = None) -> Estimate:
    return estimate(A100, demand, targets, machines or Machines())


@given(demands, st.integers(1, 100_000))
def test_more_users_never_get_fewer_gpus(demand: Demand, more: int) -> None:
    few, many = of(demand), of(replace(demand, users=demand.users + more))
    assert few.gpus <= many.gpus and few.gpus_least <= many.gpus_least
    assert 1 <= few.gpus_least <= few.gpus


@given(demands, st.floats(1.0, 4.0))
def test_longer_history_never_takes_fewer_gpus(demand: Demand, times: float) -> None:
    longer = replace(demand, context=round(demand.context * times))
    assert of(demand).gpus <= of(longer).gpus


@given(demands, st.floats(31.0, 500.0))
def test_a_stricter_target_never_takes_fewer_gpus(demand: Demand, tpot_ms: float) -> None:
    strict = replace(TARGETS, tpot_ms=30.0)
    assert of(demand, replace(TARGETS, tpot_ms=tpot_ms)).gpus <= of(demand, strict).gpus


def test_users_that_double_take_twice_as_many() -> None:
    one = of(Demand(users=5000, context=4000)).gpus
    two = of(Demand(users=10_000, context=4000)).gpus
    assert two == pytest.approx(2 * one, abs=1)


def test_history_that_memory_cannot_hold_takes_gpus_for_their_hosts() -> None:
    demand = Demand(users=2000, context=16_000)
    roomy = of(demand, machines=Machines(dram_gb=4000.0)).gpus
    tight = of(demand, machines=Machines(dram_gb=64.0)).gpus
    assert roomy < tight


def test_history_is_rather_computed_where_that_takes_fewer() -> None:
    """Some twenty hosts could read it, but have 64 GPUs each."""
    demand, machines = Demand(users=1000, context=30_000), Machines(gpus=64, dram_gb=1e-6)
    assert of(demand, machines=replace(machines, gpus=1)).gpus < 30
    assert 30 < of(demand, machines=machines).gpus < 200


def test_below_the_least_there_is_not_the_work_of_answers_nor_their_memory() -> None:
    demand = Demand(users=20_000, context=4000)
    reply = demand.reply_tokens
    length = demand.context + reply / 2
    row_ms = 0.05 + 0.000086 * length + 0.094 * demand.new_tokens / reply
    work = 20_000 * reply * row_ms / (1e3 * demand.think_s + reply * 50.0)
    answer_s = reply * 10.5e-3
    memory = 20_000 * answer_s / (demand.think_s + answer_s) * length / 400_000
    assert of(demand).gpus_least == ceil(max(work, memory))


@pytest.mark.parametrize(
    ("demand", "targets", "says"),
    [
        (
            Demand(users=1, context=4000),
            replace(TARGETS, tpot_ms=5.0),
            r"--tpot-ms 5: .* 10\.\d ms",
        ),
        (
            Demand(users=1, context=300_000, tokens_max=900_000),
            TARGETS,
            r"--context 300000: .*400,0",
        ),
    ],
)
def test_what_no_number_of_gpus_can_do_is_refused(
    demand: Demand, targets: Targets, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        of(demand, targets)
