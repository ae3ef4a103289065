"""Scheduler shards and a rank process among crashes and a bad network, and beside one scheduler."""

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from shared.ids import WorkerId
from tests.sim.heap import MS, SECOND
from tests.sim.jobs_peers import Setup, SimModel
from tests.sim.jobs_world import House
from tests.sim.test_jobs_faults import FAULTY, check_takeovers, run_house, run_seeds

SHARDS = replace(FAULTY, num_shards=2)
NUM_SEEDS = 5
CALM = Setup(
    models=tuple(SimModel(f"m{number}", 1, 5, 40) for number in range(4)),
    num_workers=4,
    loss=0.0,
    duplication=0.0,
    delay_max_ns=MS // 4,
)


def restart_the_rank(house: House) -> None:
    house.start_rank()


@pytest.mark.parametrize("policy", ["steady", "eager"])
def test_every_request_ends_once_whatever_fails(policy: str) -> None:
    run_seeds(range(NUM_SEEDS), replace(SHARDS, policy=policy), restart_the_rank)


def test_a_new_leader_does_not_run_what_still_runs() -> None:
    check_takeovers(SHARDS, num_seeds=20)


def test_a_seed_gives_the_same_trace_again() -> None:
    first, second = run_house(SHARDS, 7), run_house(SHARDS, 7)
    assert first.world.trace == second.world.trace


def load_all(house: House, per_s: float, from_ns: int, lasts_ns: int) -> None:
    """Single requests for any model, each with the model's own target."""
    random = house.world.random
    at_ns = from_ns
    while at_ns < from_ns + lasts_ns:
        frontend = random.choice(list(house.frontends.values()))
        model = random.choice(list(house.models.values()))
        request = partial(frontend.request, model, 1, int(model.slo_ms * MS))
        house.world.after(at_ns - house.world.now_ns, request)
        at_ns += int(random.expovariate(per_s) * SECOND)


def served(setup: Setup, per_s: float, seed: int) -> float:
    """Share of the requests done in time."""
    house = House(seed, setup)
    load_all(house, per_s, SECOND // 2, 3 * SECOND // 2)
    house.world.run_until(3 * SECOND)
    outcomes = house.outcomes()
    return outcomes["done"] / outcomes.total()


@pytest.mark.parametrize("per_s", [400, 2000, 3600])
def test_shards_serve_as_much_as_one_scheduler(per_s: float) -> None:
    """With hardly a network between them, at low load, near the limit and beyond it."""
    setup = replace(CALM, policy="deferred")
    one, two = (served(replace(setup, num_shards=n), per_s, 1) for n in (0, 2))
    assert two >= one - 0.03, f"{one} by one, {two} by two"


def test_a_lost_message_of_the_rank_process_does_not_stall_a_worker() -> None:
    """One in five messages is lost for a while; then all workers serve as much as before."""
    house = House(1, replace(CALM, num_shards=2, loss=0.2))
    load_all(house, 1200, SECOND // 2, 5 * SECOND)
    house.world.run_until(3 * SECOND)
    house.network.heal()
    house.world.run_until(4 * SECOND)
    before = house.outcomes()
    house.world.run_until(7 * SECOND)
    later = house.outcomes() - before
    assert later["done"] > 0.97 * later.total() > 1000, f"{before}, then {later}"


def test_a_dead_worker_of_low_number_does_not_stop_the_others() -> None:
    """The lowest free number is always granted first: a worker that is not there any more must not
    be granted for long.
    """
    later: Counter[str] = Counter()
    for seed in range(6):
        house = House(seed, replace(CALM, num_shards=2))
        load_all(house, 8, SECOND // 2, 2 * SECOND)
        house.world.run_until(SECOND)
        house.workers[WorkerId("w0")].crash()
        before = house.outcomes()
        house.world.run_until(4 * SECOND)
        later += house.outcomes() - before
    assert later["done"] > 0.9 * later.total() > 40, later
