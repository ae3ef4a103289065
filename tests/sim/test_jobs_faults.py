"""One-shot jobs among crashes and a bad network: every request ends once, nothing is left over."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from services.scheduler.core.batching.rules import RULES
from services.scheduler.core.jobs import JobsCore
from tests.sim.heap import MS, SECOND
from tests.sim.jobs_peers import Setup, SimModel
from tests.sim.jobs_world import House, SimProcess

MODELS = (SimModel("m0"), SimModel("m1", 2, 10, 100), SimModel("m2", 0.5, 3, 40))
SLOW = tuple(SimModel(f"slow{number}", 30, 200, 1200, size_max=8) for number in range(2))
FAULTY = Setup(models=MODELS, num_workers=3, num_frontends=3, jitter=0.1)
FAULTS_FOR = 5 * SECOND
CALM_FOR = 3 * SECOND
NUM_SEEDS = 4


def load(house: House, per_s: float, from_ns: int, until_ns: int) -> None:
    """Requests of one to three jobs, one after the other at random distances."""
    random = house.world.random
    at_ns = from_ns
    while at_ns < until_ns:
        frontend = random.choice(list(house.frontends.values()))
        model = random.choice(list(house.models.values()))
        slo_ns = int(model.slo_ms * MS * random.uniform(0.7, 2))
        request = partial(frontend.request, model, random.choice([1, 1, 1, 2, 3]), slo_ns)
        house.world.after(at_ns - house.world.now_ns, request)
        at_ns += int(random.expovariate(per_s) * SECOND)


def crash_a_worker(house: House) -> None:
    random = house.world.random
    house.crash_worker(random.choice(list(house.workers.values())), random.randrange(2 * SECOND))


def change_the_leader(house: House) -> None:
    """It dies, or lives on for a while without knowing that another one leads."""
    random = house.world.random
    shard = random.choice(list(house.leaders))
    if random.random() < 0.5:
        house.crash_leader(shard, random.randrange(500 * MS))
    else:
        house.lead(shard)


def hang_up(house: House) -> None:
    random = house.world.random
    frontend = random.choice(list(house.frontends.values()))
    if frontend.ends:
        frontend.hang_up(random.choice(list(frontend.ends)))


def run_house(setup: Setup, seed: int, *more: Callable[[House], None], per_s: float = 150) -> House:
    """Requests and faults; then calm until everything must be over, and a last few requests."""
    house = House(seed, setup)
    world, random = house.world, house.world.random
    load(house, per_s, 0, FAULTS_FOR)
    for _ in range(20):
        world.after(random.randrange(FAULTS_FOR), partial(hang_up, house))
    for _ in range(random.randrange(5)):
        world.after(random.randrange(FAULTS_FOR), partial(crash_a_worker, house))
    for _ in range(random.randrange(4)):
        world.after(random.randrange(FAULTS_FOR), partial(change_the_leader, house))
    for fault in more:
        world.after(random.randrange(FAULTS_FOR), partial(fault, house))
    world.run_until(FAULTS_FOR)
    house.network.heal()
    world.run_until(FAULTS_FOR + CALM_FOR)
    return house


def check_house(house: House) -> None:
    """Every request ended once, nobody holds anything, and everybody serves as at the start."""
    outcomes = house.outcomes()
    assert not outcomes["twice"], outcomes
    assert not outcomes["open"], outcomes
    check_nothing_is_left(house)
    last_from_ns = house.world.now_ns
    load(house, 60, last_from_ns, last_from_ns + SECOND)
    house.world.run_until(last_from_ns + 2 * SECOND)
    last = house.outcomes() - outcomes
    assert last["done"] > last.total() / 2, f"{last} after {outcomes}"
    check_nothing_is_left(house)
    wakes = [process.num_wakes for process in processes(house)]
    house.world.run_until(house.world.now_ns + 5 * SECOND)
    for process, before in zip(processes(house), wakes, strict=True):
        assert process.num_wakes - before <= 6, f"{process.name} is woken for nothing"


def processes(house: House) -> list[SimProcess]:
    return [*house.leaders.values(), *([house.rank] if house.rank else [])]


def check_nothing_is_left(house: House) -> None:
    for worker in house.workers.values():
        assert not worker.core.num_held, f"{worker.worker_id} holds batches"
    for frontend in house.frontends.values():
        assert not len(frontend.jobs)
    for process in house.leaders.values():
        assert isinstance(process.core, JobsCore)
        assert process.core.num_running == process.core.num_waiting == 0, process.name


def run_seeds(seeds: range, setup: Setup, *more: Callable[[House], None]) -> list[House]:
    """Names the seed of a run that fails."""
    houses = []
    for seed in seeds:
        try:
            houses.append(run_house(setup, seed, *more))
            check_house(houses[-1])
        except AssertionError as error:
            raise AssertionError(f"{setup.policy}, seed {seed}: {error}") from error
    return houses


@pytest.mark.parametrize("policy", RULES)
def test_every_request_ends_once_whatever_fails(policy: str) -> None:
    run_seeds(range(NUM_SEEDS), replace(FAULTY, policy=policy))


def check_takeovers(setup: Setup, num_seeds: int) -> None:
    """Leaders change under batches that outlast the time of learning: what runs is not run again,
    as long as no message is lost. Late, doubled and overtaking ones there are.
    """
    setup = replace(setup, models=SLOW, loss=0.0)
    for seed in range(num_seeds):
        house = run_house(setup, seed, *[change_the_leader] * 4, per_s=40)
        assert not house.twice, f"seed {seed}: {house.twice} ran under two leaders"
        assert not house.outcomes()["open"], f"seed {seed}"
        check_nothing_is_left(house)


def test_a_new_leader_does_not_run_what_still_runs() -> None:
    check_takeovers(FAULTY, num_seeds=20)


def test_a_seed_gives_the_same_trace_again() -> None:
    first, second = run_house(FAULTY, 7), run_house(FAULTY, 7)
    assert first.world.trace == second.world.trace
    assert len(first.world.trace) > 400


# Profiles that lie.

LIAR = SimModel("m", alpha_ms=1, beta_ms=5, slo_ms=32)
CALM = Setup(loss=0.0, duplication=0.0, num_workers=3, delay_max_ns=MS // 2)


@pytest.mark.parametrize(("slower", "jitter"), [(0.7, 0.02), (1.3, 0.02), (1.15, 0.13)])
@pytest.mark.parametrize("policy", ["steady", "deferred"])
def test_profiles_that_lie_are_seen_through(policy: str, slower: float, jitter: float) -> None:
    """At 60% load fewer than 2% of the requests are bad, once the times are known better."""
    model = replace(LIAR, slower=slower)
    capacity_per_s = CALM.num_workers * 1e9 * model.size_max / (slower * model.batch_ns(16))
    house = House(1, replace(CALM, models=(model,), policy=policy, jitter=jitter))
    steady_load(house, model, 0.6 * capacity_per_s, SECOND // 2, 4 * SECOND)
    house.world.run_until(5 * SECOND // 2)
    before = house.outcomes()
    house.world.run_until(5 * SECOND)
    later = house.outcomes() - before
    assert later["done"] >= 0.98 * later.total() > 1000, f"{before}, then {later}"


def steady_load(house: House, model: SimModel, per_s: float, from_ns: int, lasts_ns: int) -> None:
    """Single requests with the model's own target, at random distances."""
    random = house.world.random
    at_ns = from_ns
    while at_ns < from_ns + lasts_ns:
        frontend = random.choice(list(house.frontends.values()))
        request = partial(frontend.request, model, 1, int(model.slo_ms * MS))
        house.world.after(at_ns - house.world.now_ns, request)
        at_ns += int(random.expovariate(per_s) * SECOND)
