"""The scheduler among crashes and a bad network: every turn ends once, and nothing is left over."""

from functools import partial

import pytest

from tests.sim.heap import SECOND
from tests.sim.scheduler_world import House

NUM_SEEDS = 100
FAULTS_FOR = 12 * SECOND
CALM_FOR = 60 * SECOND


def run_house(seed: int) -> House:
    """Random turns, advisories, cancels and crashes; then calm until everything must be over."""
    house = House(seed)
    world, random = house.world, house.world.random
    for _ in range(40):
        session = f"s{random.randrange(10)}" if random.random() < 0.7 else None
        at_ns = random.randrange(FAULTS_FOR)
        if session and random.random() < 0.5:
            world.after(max(at_ns - SECOND, 0), partial(house.expect, session))
        world.after(at_ns, partial(house.frontend.submit, session))
    for _ in range(6):
        world.after(random.randrange(FAULTS_FOR), partial(cancel_one, house))
    for _ in range(random.randrange(6)):
        worker = random.choice(list(house.workers.values()))
        world.after(random.randrange(FAULTS_FOR), partial(house.crash_worker, worker))
    for _ in range(random.randrange(3)):
        world.after(random.randrange(FAULTS_FOR), house.crash_scheduler)
    world.run_until(FAULTS_FOR)
    house.network.heal()
    world.run_until(FAULTS_FOR + CALM_FOR)
    return house


def cancel_one(house: House) -> None:
    if house.frontend.turns:
        house.frontend.cancel(house.world.random.choice(list(house.frontend.turns)))


def check_house(house: House) -> None:
    """Every turn ended once for its frontend, and nobody holds anything any more."""
    for turn_id, turn in house.frontend.turns.items():
        assert len(turn.outcomes) == 1, f"{turn_id} ended {turn.outcomes}"
        if turn.outcomes == ["stop"]:
            assert turn.num_tokens == turn.num_wanted
    assert not any(worker.turns for worker in house.workers.values())
    status = house.scheduler.core.status(house.world.now_ns)
    assert status.num_turns_placed == status.num_turns_waiting == 0
    assert status.num_reservations == 0
    assert sum(worker.num_turns for worker in status.workers) == 0


@pytest.mark.parametrize("first_seed", range(0, NUM_SEEDS, 10))
def test_every_turn_ends_once_whatever_fails(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 10):
        try:
            house = run_house(seed)
            check_house(house)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_a_seed_gives_the_same_trace_again() -> None:
    first, second = run_house(7), run_house(7)
    assert first.world.trace == second.world.trace
    assert len(first.world.trace) > 40
