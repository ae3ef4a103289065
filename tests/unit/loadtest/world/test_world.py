"""A world as it is built: who leads is looked at, and what is unleashed can be healed."""

import pytest

from loadtest.sim.http import Request
from loadtest.sim.services.faults import KINDS, Faults
from loadtest.sim.services.scheduler import QUEUE_MAX, Leadership, Scheduler
from loadtest.sim.timeline import SECOND
from loadtest.sim.wires import Weather
from loadtest.world.unleash import heal, unleash
from loadtest.world.world import Options, World


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
