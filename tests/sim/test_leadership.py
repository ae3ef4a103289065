"""The lease's production shell among instances of one service: how soon a dead leader is followed,
and who leads after standstills, cuts, and a store that was away or forgot.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from loadtest.sim.services.leading import BEAT_MS, TTL_MS, Instance, Instances
from loadtest.sim.services.scheduler import Candidate
from loadtest.sim.timeline import MS, SECOND
from shared.lease.core.times import LeaseTimes

TIMES = LeaseTimes(beat_ns=BEAT_MS * MS, ttl_ns=TTL_MS * MS)
NUM_SEEDS = 20
LOOK_NS = 10 * MS  # how late the simulation sees a change


@contextmanager
def led(seed: int, *, loss: float = 0.0) -> Iterator[tuple[Instances, Candidate]]:
    """Three instances, one of them leading for a while."""
    instances = Instances(seed, 3)
    instances.wires.weather.loss = loss
    try:
        instances.run(3 * SECOND + instances.random.randrange(TIMES.beat_ns))
        assert instances.leader is not None and len(instances.takeovers) == 1
        yield instances, instances.leader
    finally:
        instances.dispose()


def takeover_ns(seed: int, *, loss: float = 0.0) -> int:
    """How long no instance leads after the leader died at a random instant."""
    with led(seed, loss=loss) as (instances, leader):
        died_at_ns = instances.timeline.now_ns
        leader.crash()
        instances.run(5 * SECOND)
        assert instances.leader not in (None, leader)
        return instances.takeovers[1][0] - died_at_ns


def test_a_dead_leader_is_followed_as_soon_as_the_bus_says_that_it_is_gone() -> None:
    times = [takeover_ns(seed) for seed in range(2 * NUM_SEEDS)]
    assert sorted(times)[2 * NUM_SEEDS * 94 // 100] <= 3 * TIMES.probe_ns + LOOK_NS
    assert max(times) <= 4 * TIMES.probe_ns + LOOK_NS, "one more where the store has its renewal"


def test_a_dead_leader_is_followed_soon_although_messages_are_lost() -> None:
    times = sorted(takeover_ns(seed, loss=0.02) for seed in range(2 * NUM_SEEDS))
    assert times[2 * NUM_SEEDS * 89 // 100] <= 3 * TIMES.probe_ns + TIMES.beat_ns + LOOK_NS
    assert times[-1] <= TIMES.ttl_ns + LOOK_NS


def test_a_leader_that_stands_still_is_followed_after_the_ttl() -> None:
    for seed in range(NUM_SEEDS):
        with led(seed) as (instances, leader):
            leader.freeze(10 * SECOND)
            frozen_at_ns = instances.timeline.now_ns
            instances.run(5 * SECOND)
            took_ns = instances.takeovers[1][0] - frozen_at_ns
            assert TIMES.ttl_ns - TIMES.beat_ns <= took_ns <= TIMES.ttl_ns + TIMES.beat_ns, seed


def test_a_leader_stays_through_a_standstill_of_every_instance() -> None:
    """As when a machine is paused."""
    for seed in range(NUM_SEEDS):
        with led(seed) as (instances, leader):
            for each in instances.all:
                each.freeze(5 * SECOND)
            instances.run(8 * SECOND)
            assert instances.leader is leader and len(instances.takeovers) == 1, seed


def test_a_leader_that_lost_its_connection_for_a_moment_goes_on_or_leaves() -> None:
    """Reconnecting takes up to 300 ms; a spare asks for the holder all the while."""
    ends: list[bool] = []
    for seed in range(2 * NUM_SEEDS):
        with led(seed) as (instances, leader):
            instances.wires.cut(leader, 10 * MS)
            assert instances.leader is None, "it leads without a connection"
            instances.run(SECOND)
            assert instances.leader is not None, seed
            is_back = instances.leader is leader
            assert len(instances.takeovers) == (1 if is_back else 2), seed
            ends.append(is_back)
    assert 0 < sum(ends) < len(ends)


def test_a_released_lease_is_taken_at_once() -> None:
    for seed in range(NUM_SEEDS):
        with led(seed) as (instances, leader):
            released_at_ns = instances.timeline.now_ns
            leader.terminate()
            instances.run(100 * MS)
            assert instances.leader not in (None, leader), seed
            assert instances.takeovers[1][0] <= released_at_ns + 50 * MS


def test_the_leader_stays_when_the_store_was_away_or_forgot() -> None:
    """No instance could renew; spares give the leader the first chance."""
    for seed in range(NUM_SEEDS):
        with led(seed) as (instances, leader):
            fence = leader.fence
            instances.store.is_up = False
            instances.run(2 * SECOND)
            assert instances.leader is None, f"seed {seed}: it leads without a lease"
            if seed % 2:
                instances.store.forget()
            instances.store.is_up = True
            instances.run(SECOND)
            assert instances.leader is leader, seed
            assert (leader.fence > fence) == bool(seed % 2), "a lease forgotten is a new term"


def test_one_leader_at_a_time_whatever_fails() -> None:
    for seed in range(2 * NUM_SEEDS):
        instances = Instances(seed, 3)
        _hurt(instances)
        instances.run(10 * SECOND)
        instances.wires.weather.loss = 0.0
        instances.run(6 * SECOND)
        assert instances.leader is not None, seed
        instances.dispose()


def _hurt(instances: Instances) -> None:
    """Freezes, deaths, orderly ends and cuts in ten seconds, of the leader more often than not."""
    random, timeline = instances.random, instances.timeline
    instances.wires.weather.loss = random.choice([0.0, 0.03])

    def hurt() -> None:
        leader = instances.leader
        target = leader if leader and random.random() < 0.6 else random.choice(instances.all)
        assert isinstance(target, Instance)
        match random.randrange(5):
            case 0 | 1:
                target.freeze(random.choice([100 * MS, SECOND, 1900 * MS, 4 * SECOND]))
            case 2 if target.is_up:
                target.end(random.randrange(2 * SECOND))
            case 3:
                target.terminate()
            case 4:
                duration_ns = random.choice([20 * MS, 110 * MS, SECOND, 3 * SECOND])
                instances.wires.cut(target, duration_ns)

    for _ in range(random.randrange(15)):
        timeline.after(random.randrange(100 * MS, 10 * SECOND), hurt)
