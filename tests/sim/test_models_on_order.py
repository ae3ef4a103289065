"""Models that workers load on order, among lost orders, dead workers and changing leaders."""

from dataclasses import replace
from functools import partial

from services.scheduler.core.jobs import JobLimits
from services.scheduler.core.partition.limits import SubclusterLimits
from shared.ids import ModelId
from tests.sim.heap import MS, SECOND
from tests.sim.jobs_peers import MODEL_BYTES
from tests.sim.jobs_world import House
from tests.sim.test_jobs_faults import (
    CALM_FOR,
    FAULTY,
    change_the_leader,
    check_nothing_is_left,
    crash_a_worker,
    load,
)

QUICK = SubclusterLimits(
    window_ns=SECOND,
    learning_ns=600 * MS,
    forget_ns=SECOND,
    missing_ns=SECOND,
    repartition_ns=3 * SECOND,
    repeat_ns=SECOND // 2,
    memory_share=1.0,
)
ON_ORDER = replace(
    FAULTY,
    num_workers=4,
    loss=0.03,
    memory_bytes=2 * MODEL_BYTES,
    limits=JobLimits(subclusters=QUICK),
)
NUM_SEEDS = 5
SHIFTS_FOR = 12 * SECOND


def crash_one_that_loads(house: House) -> None:
    """As soon as there is one."""
    loading = [w for w in house.workers.values() if w.core.models._loading is not None and w.is_up]
    if loading:
        house.crash_worker(loading[0], house.world.random.randrange(SECOND))
    else:
        house.world.after(10 * MS, partial(crash_one_that_loads, house))


def change_the_leader_at_a_load(house: House) -> None:
    """As soon as there is one."""
    if any(w.core.models._loading is not None and w.is_up for w in house.workers.values()):
        change_the_leader(house)
    else:
        house.world.after(10 * MS, partial(change_the_leader_at_a_load, house))


def run(seed: int, load_failures: float = 0.0) -> House:
    """Popularity shifts at random while everything fails; then calm, and shares as at first."""
    house = House(seed, replace(ON_ORDER, load_failures=load_failures))
    world, random = house.world, house.world.random
    everything = house.models
    load(house, 40, 0, SHIFTS_FOR + CALM_FOR)
    for at_ns in range(0, SHIFTS_FOR, 3 * SECOND):
        name = random.choice(list(everything))
        house.models = {name: everything[name]}
        load(house, 150, at_ns, at_ns + 3 * SECOND)
    house.models = everything
    for fault in (crash_a_worker, crash_one_that_loads, change_the_leader_at_a_load):
        world.after(random.randrange(SHIFTS_FOR), partial(fault, house))
    world.run_until(SHIFTS_FOR)
    house.network.heal()
    world.run_until(SHIFTS_FOR + CALM_FOR + SECOND)
    return house


def test_every_request_ends_once_and_every_model_is_served_again() -> None:
    num_unloads = 0
    for seed in range(NUM_SEEDS):
        house = run(seed)
        outcomes = house.outcomes()
        assert not outcomes["twice"] and not outcomes["open"], f"seed {seed}: {outcomes}"
        check_nothing_is_left(house)
        loaded = [model for worker in house.workers.values() for model in worker.loaded]
        assert set(loaded) == set(house.models), f"seed {seed}"
        before = house.outcomes()
        load(house, 60, house.world.now_ns, house.world.now_ns + SECOND)
        house.world.run_until(house.world.now_ns + 2 * SECOND)
        last = house.outcomes() - before
        assert last["done"] > 0.8 * last.total(), f"seed {seed}: {last}"
        num_unloads += sum(" unloads " in note for note in house.world.trace)
    assert num_unloads > NUM_SEEDS


def test_models_that_some_workers_cannot_load() -> None:
    for seed in range(NUM_SEEDS):
        house = run(seed, load_failures=0.2)
        outcomes = house.outcomes()
        assert not outcomes["twice"] and not outcomes["open"], f"seed {seed}: {outcomes}"
        check_nothing_is_left(house)
        for worker in house.workers.values():
            lacks = {lack.model_id for lack in worker.core.models.lacks(house.world.now_ns)}
            assert not lacks & worker.loaded, f"seed {seed}"


def test_an_unmanaged_worker_gets_no_order() -> None:
    house = House(1, replace(ON_ORDER, memory_bytes=0))
    load(house, 60, 0, SECOND)
    house.world.run_until(4 * SECOND)
    assert all(w.loaded == set(map(ModelId, house.models)) for w in house.workers.values())
    assert house.outcomes()["done"] > 25
