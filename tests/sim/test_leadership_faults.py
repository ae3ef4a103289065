"""The lease among crashes, standstills, a bad network and a store that forgets: one leader at a
time, fences of one's own, and soon again a leader.
"""

from functools import partial

import pytest

from tests.sim.heap import MS, SECOND
from tests.sim.lease_world import TIMES, House, Process

NUM_SEEDS = 200
FAULTS_FOR = 10 * SECOND
CALM_FOR = 6 * SECOND


def run_house(seed: int) -> House:
    """Everything goes wrong for a while; then calm, with at least one candidate alive."""
    house = House(seed, delay_max_ns=[2, 10, 40][seed % 3] * MS)
    world, random = house.world, house.world.random
    for _ in range(3):
        world.after(random.randrange(2 * SECOND), house.join)
    for _ in range(random.randrange(10)):
        world.after(random.randrange(FAULTS_FOR), partial(hurt, house, "freeze"))
    for _ in range(random.randrange(4)):
        world.after(random.randrange(FAULTS_FOR), partial(hurt, house, "die"))
    for _ in range(random.randrange(3)):
        world.after(random.randrange(FAULTS_FOR), partial(hurt, house, "release"))
    for _ in range(random.randrange(4)):
        world.after(random.randrange(FAULTS_FOR), partial(hurt, house, "cut"))
    for _ in range(random.randrange(4)):
        world.after(random.randrange(FAULTS_FOR - 3 * SECOND), partial(stop_store, house))
    house.dispatch_all(17 * MS, FAULTS_FOR + CALM_FOR)
    world.run_until(FAULTS_FOR)
    house.calm()
    house.join()
    world.run_until(FAULTS_FOR + CALM_FOR)
    return house


def hurt(house: House, how: str) -> None:
    """Something happens to a process, to the leader more often than not."""
    random = house.world.random
    candidates = [process for process in house.processes if not process.is_dead]
    if not candidates:
        return
    leaders = house.leaders
    process = leaders[0] if leaders and random.random() < 0.6 else random.choice(candidates)
    if how == "freeze":
        process.freeze(random.choice([100 * MS, SECOND, 1900 * MS, 4 * SECOND]))
        return
    if how == "cut":
        process.cut(random.choice([20 * MS, 110 * MS, SECOND, 3 * SECOND]))
        return
    if how == "die":
        process.die()
    else:
        release(process)
    house.world.after(random.randrange(2 * SECOND), house.join)  # as a supervisor does


def release(process: Process) -> None:
    process.deliver(lambda: process.core.release(process.now_ns))


def stop_store(house: House) -> None:
    """The store is away for a while; if its whole server restarts, it may come back empty."""
    random, store = house.world.random, house.store
    house.world.note("store away")
    store.is_up = False
    away_ns = random.choice([50 * MS, 300 * MS, 3 * SECOND])
    is_restarting = random.random() < 0.5
    if is_restarting:
        for process in house.processes:
            process.cut(away_ns + random.randrange(150 * MS))

    def back() -> None:
        if is_restarting and random.random() < 0.5:
            store.forget()
        store.is_up = True
        house.world.note("store back")

    house.world.after(away_ns, back)


@pytest.mark.parametrize("first_seed", range(0, NUM_SEEDS, 20))
def test_one_leader_at_a_time_whatever_fails(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        try:
            house = run_house(seed)
            assert len(house.leaders) == 1
            assert house.worker.highest_fence == house.leaders[0].fences[-1]
            assert house.worker.last_taken_at_ns > FAULTS_FOR + CALM_FOR - 100 * MS
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def calm_house(seed: int, *, loss: float = 0.0) -> tuple[House, Process]:
    """Three candidates, one of them leading for a while."""
    house = House(seed, loss=loss, delay_max_ns=2 * MS)
    for _ in range(3):
        house.join()
    house.world.run_until(3 * SECOND + house.world.random.randrange(TIMES.beat_ns))
    [leader] = house.leaders
    return house, leader


def takeover_ns(seed: int, *, loss: float = 0.0) -> int:
    """How long nobody leads after the leader died at a random instant."""
    house, leader = calm_house(seed, loss=loss)
    world = house.world
    leader.die()
    died_at_ns = world.now_ns
    world.run_until(died_at_ns + 5 * SECOND)
    assert len(house.leaders) == 1, f"seed {seed}"
    return house.takeovers[-1] - died_at_ns


def test_a_dead_leader_is_followed_as_soon_as_the_bus_says_that_it_is_gone() -> None:
    times = [takeover_ns(seed) for seed in range(100)]
    assert sorted(times)[94] <= 3 * TIMES.probe_ns
    assert max(times) <= 4 * TIMES.probe_ns, "one more where its last renewal is found in the store"


def test_a_dead_leader_is_followed_soon_although_messages_are_lost() -> None:
    times = sorted(takeover_ns(seed, loss=0.02) for seed in range(100))
    assert times[89] <= 3 * TIMES.probe_ns + TIMES.beat_ns
    assert times[-1] <= TIMES.ttl_ns


def test_a_leader_that_stands_still_is_followed_after_the_ttl() -> None:
    for seed in range(50):
        house, leader = calm_house(seed)
        leader.freeze(10 * SECOND)
        frozen_at_ns = house.world.now_ns
        house.world.run_until(frozen_at_ns + 5 * SECOND)
        took_ns = house.takeovers[-1] - frozen_at_ns
        assert TIMES.ttl_ns - TIMES.beat_ns <= took_ns <= TIMES.ttl_ns + TIMES.beat_ns


def test_a_leader_stays_through_a_standstill_of_the_whole_house() -> None:
    """As when a machine is paused: nobody can blame anybody for it."""
    for seed in range(50):
        house, leader = calm_house(seed)
        for process in house.processes:
            process.freeze(5 * SECOND)
        house.world.run_until(house.world.now_ns + 8 * SECOND)
        assert house.leaders == [leader], f"seed {seed}"
        assert len(house.takeovers) == 1


def test_a_leader_that_lost_its_connection_for_a_moment_goes_on_or_leaves() -> None:
    for seed in range(50):
        house, leader = calm_house(seed)
        is_short = seed % 2 == 0
        leader.cut(10 * MS if is_short else 4 * TIMES.probe_ns)
        assert not house.leaders, "it leads without a connection"
        house.world.run_until(house.world.now_ns + SECOND)
        assert (house.leaders == [leader]) == is_short, f"seed {seed}"
        assert leader.is_over != is_short


def test_a_released_lease_is_taken_at_once() -> None:
    for seed in range(50):
        house, leader = calm_house(seed)
        released_at_ns = house.world.now_ns
        release(leader)
        house.world.run_until(released_at_ns + 100 * MS)
        assert len(house.leaders) == 1 and leader.is_over, f"seed {seed}"
        assert house.takeovers[-1] <= released_at_ns + 50 * MS


def test_the_leader_stays_when_the_store_was_away_or_forgot() -> None:
    """Nobody could renew; the spares give the leader the first chance."""
    for seed in range(50):
        house, leader = calm_house(seed)
        house.store.is_up = False
        house.world.run_until(house.world.now_ns + 2 * SECOND)
        assert not house.leaders, f"seed {seed}: it leads without a lease"
        if seed % 2:
            house.store.forget()
        house.store.is_up = True
        house.world.run_until(house.world.now_ns + SECOND)
        assert house.leaders == [leader], f"seed {seed}"
        assert len(leader.fences) == 1 + seed % 2, "a lease forgotten is a new term"


def test_a_seed_gives_the_same_trace_again() -> None:
    first, second = run_house(8), run_house(8)
    assert first.world.trace == second.world.trace
    assert len(first.world.trace) > 10
