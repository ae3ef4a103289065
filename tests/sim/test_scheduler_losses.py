"""Turns that are lost with their workers again and again: those that go on finish, one that kills
its workers ends alone, and takes few along.
"""

from functools import partial

import pytest

from tests.sim.heap import MS, SECOND
from tests.sim.scheduler_world import STEP, House, SimWorker

NUM_INNOCENTS = 32
CALM_FOR = 120 * SECOND
DEATHS_SHARED_MAX = 2


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
        allowed = DEATHS_SHARED_MAX + turn.is_poison
        assert turn.num_deaths <= allowed, f"{turn_id} was there at {turn.num_deaths} deaths"
    assert all(worker.trial is None for worker in house.scheduler.core._fleet)


@pytest.mark.parametrize("num_workers", [1, 2, 3, 8])
@pytest.mark.parametrize("first_seed", range(0, 40, 10))
def test_a_turn_that_kills_its_workers_takes_few_along(first_seed: int, num_workers: int) -> None:
    for seed in range(first_seed, first_seed + 10):
        try:
            check_poison(run_with_poison(seed, num_workers))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


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
