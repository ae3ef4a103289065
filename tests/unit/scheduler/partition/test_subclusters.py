"""Sub-clusters of a running deployment: bounded changes, no last copy unloaded, bad days."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from services.scheduler.core.partition.groups import find_groups, worker_move
from services.scheduler.core.partition.limits import SubclusterLimits
from services.scheduler.core.partition.solving import SolvePartition, solve
from services.scheduler.core.partition.subclusters import HoldModels, ModelSize, Subclusters

S = 1_000_000_000
MB = 1_000_000
JOB_NS = 10_000_000


@dataclass
class Host:
    """A worker: obeys its last order after a while, model by model."""

    number: int
    memory_mb: int
    holds: set[str] = field(default_factory=set)
    wanted: frozenset[str] | None = None
    busy_until_s: int = 0
    refused: set[str] = field(default_factory=set)

    @property
    def is_changing(self) -> bool:
        return self.wanted is not None and self.wanted != frozenset(self.holds)


def size_of(size_mb: int) -> ModelSize:
    return ModelSize(static_bytes=size_mb * MB, dynamic_bytes=0, job_ns=JOB_NS)


class World:
    """Workers, a network that loses messages, and one scheduler at a time."""

    def __init__(
        self, num_workers: int, sizes_mb: dict[str, int], memory_mb: int, **limits: Any
    ) -> None:
        self.rng = random.Random(1)
        self.sizes_mb = sizes_mb
        self.limits = SubclusterLimits(**limits)
        self.hosts = {n: Host(n, memory_mb) for n in range(num_workers)}
        self.now_s = 0
        self.loss = 0.0
        self.load_s = 5
        self.loads = dict.fromkeys(sizes_mb, 0.1)
        self.changes: list[tuple[int, int]] = []
        self.lost_last_copies: list[str] = []
        self.lacks: dict[int, set[str]] = {}
        self.orders: list[tuple[int, HoldModels]] = []
        self.take_over()

    def take_over(self) -> None:
        self.core = Subclusters(self.limits, self.now_s * S)
        for name, size in self.sizes_mb.items():
            self.core.put_model(
                name, ModelSize(static_bytes=size * MB, dynamic_bytes=0, job_ns=JOB_NS)
            )

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1
            self.step()

    def step(self) -> None:
        for host in self.hosts.values():
            self.work(host)
            if self.rng.random() >= self.loss:
                host.refused |= self.lacks.get(host.number, set()) & (host.wanted or set())
                lacks = frozenset(host.refused)
                self.core.on_report(host.number, frozenset(host.holds), host.memory_mb * MB, lacks)
        for name, load in self.loads.items():
            self.core.loads.on_jobs(name, round(load * S / JOB_NS))
        for effect in self.core.on_interval(self.now_s * S):
            if isinstance(effect, SolvePartition):
                self.core.on_partition(solve(effect))
                continue
            self.orders.append((self.now_s, effect))
            if self.rng.random() >= self.loss:
                self.obey(effect)

    def obey(self, order: HoldModels) -> None:
        host = self.hosts.get(order.worker)
        if host is None:
            return
        models = frozenset(map(str, order.models))
        if host.wanted != models:
            if host.holds:
                self.changes.append((self.now_s, host.number))
            host.busy_until_s = self.now_s + self.load_s
        host.wanted = models

    def work(self, host: Host) -> None:
        if host.wanted is None:
            return
        for name in host.holds - host.wanted:
            others = [h for h in self.hosts.values() if h is not host and name in h.holds]
            if not others and name in self.sizes_mb:
                self.lost_last_copies.append(name)
        host.holds &= host.wanted
        missing = sorted(host.wanted - host.holds - self.lacks.get(host.number, set()))
        if missing and self.now_s >= host.busy_until_s:
            host.holds.add(missing[0])
        assert sum(self.sizes_mb[m] for m in host.holds) <= host.memory_mb, "out of memory"

    @property
    def copies(self) -> Counter[str]:
        return Counter(name for host in self.hosts.values() for name in host.holds)

    @property
    def groups(self) -> Counter[frozenset[str]]:
        return Counter(frozenset(host.holds) for host in self.hosts.values())

    def most_changes_a_minute(self) -> int:
        return max(
            (sum(at <= other < at + 60 for other, _ in self.changes) for at, _ in self.changes),
            default=0,
        )


def ten_models(**more: Any) -> World:
    """Ten models of 100 MB; a worker takes 300 MB and more: four or so sub-clusters."""
    return World(16, {f"m{n}": 100 for n in range(10)}, memory_mb=400, **more)


def test_every_model_is_loaded_and_every_sub_cluster_is_alike() -> None:
    world = ten_models()
    world.run(90)
    assert set(world.copies) == set(world.sizes_mb)
    assert min(world.copies.values()) >= 2
    assert 3 <= len(world.groups) <= 5
    assert not world.changes  # loading into empty workers changes nothing that runs


def test_one_sub_cluster_where_everything_fits_one_worker() -> None:
    world = World(8, {f"m{n}": 10 for n in range(10)}, memory_mb=400)
    world.run(90)
    assert list(world.groups.values()) == [8]


def test_workers_follow_the_load_within_the_bound() -> None:
    world = ten_models(changed_share_max=0.13)  # 2 of 16
    world.run(90)
    before = world.copies["m0"]
    world.loads["m0"] = 7.0
    world.run(600)
    assert world.copies["m0"] >= max(9, before + 3)
    assert 1 <= world.most_changes_a_minute() <= 2
    assert not world.lost_last_copies
    assert set(world.copies) == set(world.sizes_mb)


def test_steady_loads_change_nothing() -> None:
    world = ten_models()
    world.run(90)
    world.loads = {name: 0.5 + 0.2 * n for n, name in enumerate(world.loads)}
    world.run(900)
    settled = len(world.changes)
    world.run(3600)
    assert len(world.changes) == settled


def test_a_new_model_is_placed_and_an_old_one_unloaded() -> None:
    world = ten_models()
    world.run(90)
    world.sizes_mb["new"] = 50
    world.core.put_model("new", size_of(50))
    world.loads["new"] = 0.5
    world.core.remove_model("m3")
    world.run(900)
    assert world.copies["new"] >= 1
    assert world.copies["m3"] == 0


def test_a_worker_that_dies_while_it_loads_is_replaced() -> None:
    world = ten_models()
    world.run(90)
    world.loads["m0"] = 7.0
    while not any(host.is_changing for host in world.hosts.values()):
        world.run(1)
    dying = next(n for n, host in world.hosts.items() if host.is_changing)
    del world.hosts[dying]
    world.core.on_worker_gone(dying)
    world.run(600)
    assert set(world.copies) == set(world.sizes_mb)
    assert world.copies["m0"] >= 7


def test_a_sub_cluster_whose_workers_all_died_gets_others() -> None:
    world = ten_models()
    world.run(90)
    dead = next(iter(world.groups))
    for number in [n for n, host in world.hosts.items() if host.holds == dead]:
        del world.hosts[number]
        world.core.on_worker_gone(number)
    assert set(world.copies) != set(world.sizes_mb)
    world.run(180)
    assert set(world.copies) == set(world.sizes_mb)


def test_a_restarted_worker_is_sent_its_models_again() -> None:
    world = ten_models()
    world.run(90)
    world.hosts[3].holds, world.hosts[3].wanted = set(), None
    world.run(60)
    assert len(world.hosts[3].holds) >= 2


def test_a_model_that_one_worker_lacks_is_served_by_the_others() -> None:
    world = ten_models()
    world.lacks[0] = {"m0", "m1"}
    world.run(600)
    assert not {"m0", "m1"} & world.hosts[0].holds
    assert set(world.copies) == set(world.sizes_mb)
    assert len([1 for at, order in world.orders if order.worker == 0 and at > 120]) == 0


def test_a_model_larger_than_any_worker_keeps_no_other_from_being_placed() -> None:
    world = World(4, {"huge": 500, "a": 100, "b": 100}, memory_mb=400, learning_ns=30 * S)
    world.loads["huge"] = 900.0  # the busiest for its size
    world.run(90)
    assert set(world.copies) == {"a", "b"}


def test_more_models_than_memory_places_the_busiest() -> None:
    sizes = {f"m{n}": 100 for n in range(10)}
    world = World(2, sizes, memory_mb=400)
    world.loads = {name: 0.1 + 0.1 * n for n, name in enumerate(sizes)}
    world.limits = SubclusterLimits(learning_ns=30 * S)
    world.take_over()
    world.run(90)
    assert {"m9", "m8", "m7"} <= set(world.copies)


def test_a_scheduler_that_takes_over_changes_nothing_that_holds() -> None:
    world = ten_models()
    world.run(90)
    # A partition made for these loads from nothing would be another one.
    world.loads = {name: 0.3 + 0.15 * n for n, name in enumerate(reversed(world.loads))}
    world.run(900)
    before = {n: set(host.holds) for n, host in world.hosts.items()}
    world.take_over()
    world.run(900)
    assert {n: host.holds for n, host in world.hosts.items()} == before


def test_a_takeover_in_the_middle_of_changes_keeps_the_bound() -> None:
    world = ten_models(changed_share_max=0.13)
    world.run(90)
    world.loads["m0"] = 7.0
    for _ in range(6):
        world.run(35)
        world.take_over()
    world.run(600)
    assert 1 <= world.most_changes_a_minute() <= 2
    assert not world.lost_last_copies
    assert set(world.copies) == set(world.sizes_mb)


@pytest.mark.parametrize("seed", range(25))
def test_lost_messages_takeovers_and_shifting_loads(seed: int) -> None:
    world = ten_models(
        changed_share_max=0.13, repartition_ns=120 * S, uneven_max=0.3, even_min=0.05
    )
    world.rng = rng = random.Random(seed)
    world.load_s = rng.randrange(1, 20)
    world.run(90)
    world.loss = 0.5
    for _ in range(20):
        hot = rng.choice(list(world.loads))
        world.loads = {name: rng.random() for name in world.loads} | {hot: rng.uniform(0, 9)}
        world.run(rng.randrange(20, 150))
        if rng.random() < 0.3:
            world.take_over()
    assert world.changes, "nothing was tested"
    assert not world.lost_last_copies
    assert world.most_changes_a_minute() <= 4, (
        world.changes
    )  # a lost one arrives in the next minute
    world.loss = 0.0
    world.run(900)
    assert set(world.copies) == set(world.sizes_mb)
    assert len(world.groups) <= 6


def test_sub_clusters_are_found_in_what_workers_hold() -> None:
    a, b = frozenset("abc"), frozenset("xyz")
    holds = {1: a, 2: a, 3: b, 4: b, 5: frozenset("ab"), 6: frozenset(), 7: frozenset("yq")}
    found = find_groups(holds)
    assert found.num_subclusters == 2
    assert found.subcluster_of_worker[5] == found.subcluster_of_worker[1]
    assert found.subcluster_of_worker[7] == found.subcluster_of_worker[3]
    assert found.subcluster_of_model["q"] == found.subcluster_of_worker[7]
    assert 6 not in found.subcluster_of_worker


def test_a_worker_moves_only_where_that_gains() -> None:
    assert worker_move([4, 4], [3.9, 1.0], [0, 1], gain_min=0.1) == (1, 0)
    assert worker_move([4, 4], [2.0, 2.0], [0, 1], gain_min=0.1) is None
    assert worker_move([4, 4], [3.9, 1.0], [], gain_min=0.1) is None
    assert worker_move([0, 4], [0.0, 1.0], [1], gain_min=0.1) == (1, 0)


def test_a_model_in_demand_takes_the_place_of_an_idle_one() -> None:
    world = World(2, {"a": 100, "b": 100, "c": 100}, memory_mb=130)
    world.loads = {"a": 0.5, "b": 0.5, "c": 0.0}
    world.limits = SubclusterLimits(learning_ns=30 * S)
    world.take_over()
    world.run(120)
    assert set(world.copies) == {"a", "b"}
    world.loads = {"a": 0.5, "b": 0.0, "c": 0.5}
    world.run(700)
    assert set(world.copies) == {"a", "c"}
    assert len(world.changes) == 1


def test_a_model_with_demand_keeps_its_place() -> None:
    world = World(2, {"a": 100, "b": 100, "c": 100}, memory_mb=130)
    world.loads = {"a": 0.5, "b": 0.1, "c": 0.0}
    world.limits = SubclusterLimits(learning_ns=30 * S)
    world.take_over()
    world.run(120)
    world.loads["c"] = 0.9
    world.run(900)
    assert set(world.copies) == {"a", "b"} and not world.changes


def test_what_is_idle_stays_where_nothing_else_needs_its_place() -> None:
    world = World(2, {"a": 100, "b": 100}, memory_mb=130)
    world.run(90)
    world.loads = {"a": 0.9, "b": 0.0}
    world.run(1800)
    assert set(world.copies) == {"a", "b"}
