"""Turns that are lost with their workers again and again: those that go on finish, one that kills
its workers ends alone, and takes few along. Workers that are only out of reach condemn nobody.
"""

from functools import partial

import pytest

from tests.sim.heap import MS, SECOND
from tests.sim.scheduler_world import STEP, House, SimWorker

NUM_INNOCENTS = 32
CALM_FOR = 120 * SECOND
DEATHS_SHARED_MAX = 2
DEATHS_OF_POISON_MAX = 4  # one alone may come before the first two are proven
OUT_OF_REACH_NS = 3 * SECOND


def run_with_poison(seed: int, num_workers: int) -> House:
    """A poison turn somewhere among innocent ones."""
    house = House(seed, num_workers)
    world, random = house.world, house.world.random
    for _ in range(NUM_INNOCENTS):
        world.after(random.randrange(2 * SECOND), partial(house.frontend.submit, None))
    poison = partial(house.frontend.submit, None, is_poison=True)
    world.after(random.randrange(2 * SECOND), poison)
    world.run_until(5 * SECOND)
    house.network.heal()
    world.run_until(CALM_FOR)
    return house


def check_poison(house: House) -> None:
    """Only the poison failed, for what it is, and the innocents lost little by it."""
    for turn_id, turn in house.frontend.turns.items():
        wanted = "poisoned" if turn.is_poison else "stop"
        assert turn.outcomes == [wanted], f"{turn_id} ended {turn.outcomes}, not {wanted}"
        allowed = DEATHS_OF_POISON_MAX if turn.is_poison else DEATHS_SHARED_MAX
        assert turn.num_deaths <= allowed, f"{turn_id} was there at {turn.num_deaths} deaths"
    assert all(worker.isolation.turn is None for worker in house.scheduler.core._fleet)


@pytest.mark.parametrize("num_workers", [1, 2, 3, 8])
@pytest.mark.parametrize("first_seed", range(0, 40, 10))
def test_a_turn_that_kills_its_workers_takes_few_along(first_seed: int, num_workers: int) -> None:
    for seed in range(first_seed, first_seed + 10):
        try:
            check_poison(run_with_poison(seed, num_workers))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def run_out_of_reach(seed: int, num_workers: int, *, has_poison: bool) -> House:
    """Innocent turns on workers that are out of reach now and then. What kills workers is a poison
    turn, or else chance, once.
    """
    house = House(seed, num_workers)
    world, random = house.world, house.world.random
    for _ in range(NUM_INNOCENTS):
        world.after(random.randrange(12 * SECOND), partial(house.frontend.submit, None))
    for worker in house.workers.values():
        for at_s in range(0, 12, 4):
            at_ns = at_s * SECOND + random.randrange(SECOND)
            world.after(at_ns, partial(house.cut_worker, worker, OUT_OF_REACH_NS))
    at_ns = random.randrange(12 * SECOND)
    if has_poison:
        world.after(at_ns, partial(house.frontend.submit, None, is_poison=True))
    else:
        worker = random.choice(list(house.workers.values()))
        world.after(at_ns, partial(house.crash_worker, worker))
    world.run_until(16 * SECOND)
    house.network.heal()
    world.run_until(CALM_FOR)
    return house


@pytest.mark.parametrize("has_poison", [False, True])
@pytest.mark.parametrize("num_workers", [1, 2, 3, 8])
def test_nobody_is_condemned_for_workers_out_of_reach(num_workers: int, has_poison: bool) -> None:
    for seed in range(15):
        house = run_out_of_reach(seed, num_workers, has_poison=has_poison)
        for turn_id, turn in house.frontend.turns.items():
            wanted = {"poisoned"} if turn.is_poison else {"stop"}
            if num_workers == 1 and not turn.is_poison:
                wanted.add("no_worker")  # it may be away for all of a turn's patience
            ends = turn.outcomes
            assert len(ends) == 1 and ends[0] in wanted, f"seed {seed}: {turn_id} ended {ends}"


def kill_often(house: House, worker: SimWorker, num_left: int) -> None:
    """Crash a worker a few tokens after each time that it has the turn."""
    turn = next(iter(house.frontend.turns.values()))
    if not num_left or turn.outcomes:
        return
    if worker.is_up and worker.turns and turn.num_tokens >= 3 * turn.num_deaths + 1:
        worker.crash()
        house.world.after(500 * MS, worker.start)
        num_left -= 1
    house.world.after(STEP // 3, partial(kill_often, house, worker, num_left))


@pytest.mark.parametrize("seed", range(5))
def test_a_long_turn_outlives_a_hundred_deaths_of_its_worker(seed: int) -> None:
    house = House(seed, num_workers=1)
    house.network.heal()
    (worker,) = house.workers.values()
    house.frontend.submit(None, num_wanted=400)
    kill_often(house, worker, 100)
    house.world.run_until(600 * SECOND)
    (turn,) = house.frontend.turns.values()
    assert (turn.outcomes, turn.num_tokens, turn.num_deaths) == (["stop"], 400, 100)
