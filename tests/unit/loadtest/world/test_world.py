"""A world as it is built: who leads is looked at, and what is unleashed can be healed."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from loadtest.sim.http import Request
from loadtest.sim.services.faults import KINDS, Faults
from loadtest.sim.services.scheduler import QUEUE_MAX, Leadership, Scheduler
from loadtest.sim.services.worker import Worker
from loadtest.sim.timeline import SECOND
from loadtest.sim.wires import Weather
from loadtest.world.unleash import heal, unleash
from loadtest.world.world import Options, World
from services.scheduler.core.fleet.records import Worker as KnownWorker
from shared.wire.subjects import WORKER_START

EVENTS_MAX = 400_000


def world_with(*kinds: str) -> World:
    """Of the first seed that has two schedulers; faults of these kinds that last are on."""
    worlds = (World(seed, Options(), Faults(frozenset(kinds), [])) for seed in range(100))
    return next(world for world in worlds if len(world.schedulers) == 2)


def test_no_fence_is_given_to_two(monkeypatch: pytest.MonkeyPatch) -> None:
    leadership = world_with().scheduling[0]
    first, second = leadership.candidates
    monkeypatch.setattr(Scheduler, "fence", 1)
    monkeypatch.setattr(Leadership, "leaders", [first])
    leadership.check()
    leadership.check()
    monkeypatch.setattr(Leadership, "leaders", [second])
    with pytest.raises(AssertionError, match="both lead under 1"):
        leadership.check()
    monkeypatch.setattr(Scheduler, "fence", 2)
    leadership.check()


def test_two_leaders_at_once_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    leadership = world_with().scheduling[0]
    leadership.check()
    monkeypatch.setattr(Scheduler, "is_leading", True)
    with pytest.raises(AssertionError, match="lead at once"):
        leadership.check()


def test_what_is_unleashed_is_healed() -> None:
    world = world_with(*KINDS)
    wires, disks = world.deployment.wires, [each.disk for each in world.kvstores.values()]
    unleash(world)
    assert wires.weather.loss and wires.weather.duplication and wires.weather.slow
    assert all(scheduler.queue_max < QUEUE_MAX for scheduler in world.schedulers)
    assert all(disk.unread_share for disk in disks)
    for disk in disks:
        disk.is_full, disk.slowness = True, 20
    world.redis.takes_writes = False
    heal(world)
    assert wires.weather == Weather()
    assert all(scheduler.queue_max == QUEUE_MAX for scheduler in world.schedulers)
    for disk in disks:
        assert (disk.is_full, disk.slowness, disk.unread_share) == (False, 1, 0)
    assert world.redis.takes_writes


@pytest.mark.parametrize("is_scattered", [False, True])  # workers report sooner there
@pytest.mark.parametrize(("frozen_ns", "dropped_after_ns"), [
    (3 * SECOND, None), (3 * SECOND, 0), (3 * SECOND, SECOND // 10), (3 * SECOND, 2 * SECOND),
    (0, 0),
])  # fmt: skip
def test_a_worker_may_be_dead_once_it_is_silent_and_at_once_when_it_is_dropped(
    frozen_ns: int, dropped_after_ns: int | None, *, is_scattered: bool
) -> None:
    with served(is_scattered=is_scattered) as (world, scheduler, worker, known):
        timeline, wires = world.deployment.timeline, world.deployment.wires
        worker.freeze(frozen_ns)
        if dropped_after_ns is not None:
            dropped_ns = 1 if frozen_ns else 3 * SECOND
            timeline.after(dropped_after_ns, partial(wires.cut, worker, dropped_ns))
        until_ns, was_dead = timeline.now_ns + 4 * SECOND, False
        while timeline.now_ns < until_ns:
            timeline.run_until(timeline.now_ns + SECOND // 100, EVENTS_MAX)
            scheduler.check()
            was_dead |= not known.alive
        assert was_dead and known.alive


@pytest.mark.parametrize("frozen_ns", [0, SECOND // 3, 19 * SECOND // 10])
def test_a_worker_that_is_well_or_hardly_disturbed_must_not_be_dead(frozen_ns: int) -> None:
    with served(is_scattered=False) as (world, scheduler, worker, known):
        worker.freeze(frozen_ns)
        world.deployment.timeline.run_until(2 * SECOND + frozen_ns, EVENTS_MAX)
        scheduler.part("turns")._mark_dead(known, scheduler.now_ns)
        with pytest.raises(AssertionError, match="lives, and counts as dead"):
            scheduler.check()


@contextmanager
def served(*, is_scattered: bool) -> Iterator[tuple[World, Scheduler, Worker, KnownWorker]]:
    """A world that has run for 2 s without faults; the scheduler of its turns, a worker, and what
    the scheduler knows of that.
    """
    worlds = (World(seed, Options(), Faults(frozenset(), [])) for seed in range(100))
    world = next(each for each in worlds if each.deployment.is_scattered == is_scattered)
    try:
        world.deployment.timeline.run_until(2 * SECOND, EVENTS_MAX)
        (scheduler,) = world.scheduling[0].leaders
        assert isinstance(scheduler, Scheduler)
        known = next(iter(scheduler.part("turns")._fleet))
        worker = world.deployment.wires.listener(WORKER_START.name(known.worker_id))
        assert isinstance(worker, Worker)
        yield world, scheduler, worker, known
    finally:
        world.dispose()


class Broken:
    """A client that notes how its connection broke."""

    def __init__(self) -> None:
        self.are_refused: list[bool] = []

    def on_status(self, status: int) -> None:
        raise AssertionError("it is not answered")

    def on_data(self, data: bytes) -> None:
        raise AssertionError("it is not answered")

    def on_end(self) -> None:
        raise AssertionError("it is not answered")

    def on_broken(self, *, is_refused: bool) -> None:
        self.are_refused.append(is_refused)


def test_the_death_of_a_frontend_breaks_its_clients_connections() -> None:
    world = world_with()
    frontend, timeline = world.frontends[0], world.deployment.timeline
    client = Broken()
    try:
        timeline.run_until(SECOND, 100_000)
        assert frontend.is_listening
        frontend.request(Request(path="/v1/completions", body=b"{}", address="somewhere"), client)
        frontend.crash()
    finally:
        world.dispose()
    assert client.are_refused == [False]
