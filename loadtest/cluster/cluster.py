"""A cluster, put together: the world's processes on a plant that has only costs."""

from collections import Counter
from functools import partial
from random import Random
from typing import ClassVar

from loadtest.cluster.by_reference import ReferenceWires
from loadtest.cluster.control import (
    ClusterScheduler,
    ClusterTracker,
    Migrator,
    advisory_outcomes,
)
from loadtest.cluster.door import SimulatedDoor
from loadtest.cluster.kvstore import ClusterKvstore
from loadtest.cluster.migration import Migration
from loadtest.cluster.options import ClusterOptions
from loadtest.cluster.people import People
from loadtest.cluster.plant import Plant, build_plant
from loadtest.cluster.pools import PinnedPool
from loadtest.cluster.shells.frontend import Frontend
from loadtest.cluster.stats import Stats
from loadtest.cluster.worker import ClusterWorker
from loadtest.policies.placement import SYSTEMS, Home
from loadtest.sim.client import Store
from loadtest.sim.process import Process
from loadtest.sim.redis import server_on
from loadtest.sim.services.checks import check_worker
from loadtest.sim.services.deployment import SimDeployment
from loadtest.sim.services.ledger import Ledger
from loadtest.sim.services.model import Model
from loadtest.sim.timeline import MS, SECOND, Timeline
from loadtest.workloads.script import Script
from services.kvstore.core.integrity import check_integrity
from services.scheduler.core import DEFAULT_POLICY
from shared.ids import HostId, WorkerId
from shared.wire.hint_accounts import HintLimits
from shared.wire.messages import TurnStart

WIRE_MAX_NS = MS // 2  # a message takes a random time up to this
SETTLE_NS = 5 * SECOND  # until all are connected, and a scheduler leads
DRAIN_NS = 120 * SECOND  # for turns that run after the last request
SAMPLE_NS = SECOND
VOCAB = 128


class _Ledger(Ledger):
    """Nothing is checked here."""

    def on_start_turn(self, start: TurnStart, worker_id: WorkerId) -> None:
        """A turn is given to a worker."""


class _Frontend(Frontend):
    hint_limits: ClassVar = HintLimits()


class Cluster:
    """All processes, started; no request was made yet.

    Attributes:
        stats: what happens.
    """

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options
        self.plant = plant = build_plant(options)
        self.deployment = deployment = _new_deployment(options, plant)
        without, system = options.without, SYSTEMS[options.policy]
        migration = Migration(plant.block_tokens) if system.migrates else None
        self.stats = stats = Stats(plant.grain, warm_ns=options.warm_ns)
        self._pages_before: Counter[str] = Counter()  # by tier, until it was warm
        self._outcomes_before = advisory_outcomes()  # the same
        redis, ledger = server_on(deployment.timeline), _Ledger(deployment.timeline)
        num_hosts = -(-options.gpus // options.gpus_per_host)
        self.kvstores = {
            host: ClusterKvstore(deployment, redis, host, plant)
            for host in (HostId(f"h{number}") for number in range(num_hosts))
        }
        for kvstore in self.kvstores.values():
            kvstore.others |= self.kvstores
        hosts = list(self.kvstores.values())
        self.workers = [
            ClusterWorker(
                deployment,
                hosts[number // options.gpus_per_host],
                number,
                plant,
                stats,
                without=without,
                history_from=system.history_from,
                migration=migration,
            )
            for number in range(options.gpus)
        ]
        self._frontend = _Frontend(deployment, redis, ledger, 0)
        store = Store()
        policy = Home if "balance" in without else system.make
        self._control = [
            *(
                ClusterScheduler(deployment, store, f"{policy.__module__}:{policy.__name__}", shard)
                for shard in range(options.schedulers)
            ),
            ClusterTracker(deployment, store),
        ]
        processes: list[Process] = [*hosts, *self.workers, *self._control, self._frontend]
        if migration is not None:
            processes.append(Migrator(deployment, migration))
        for process in processes:
            process.start()

    def run(self, scripts: list[Script]) -> None:
        """Let them ask, and wait for what was begun.

        Raises:
            AssertionError: an invariant does not hold.
        """
        timeline, options = self.deployment.timeline, self.options
        timeline.run_until(SETTLE_NS, 1 << 62)
        people = People(
            SimulatedDoor(self.deployment, self._frontend),
            scripts,
            options,
            self.stats,
            grain=self.plant.grain,
            tokens_max=self.deployment.model.max_model_len,
        )
        ends_at_ns = SETTLE_NS + options.lasts_ns
        if options.warm_ns:
            timeline.after(options.warm_ns, self._on_warm)
        timeline.after(0, partial(self._sample, ends_at_ns))
        while people.num_left and timeline.now_ns < ends_at_ns:
            timeline.run_until(min(timeline.now_ns + SECOND, ends_at_ns), 1 << 62)
        while people.num_open and timeline.now_ns < ends_at_ns + DRAIN_NS:
            timeline.run_until(timeline.now_ns + SECOND, 1 << 62)
        self.stats.outcomes = advisory_outcomes()
        self.stats.outcomes.subtract(self._outcomes_before)
        for service in self._control:
            service.dispose()
        self.check()

    def check(self) -> None:
        """Every page is in one place, and nothing is miscounted."""
        for worker in self.workers:
            if isinstance(worker.core.pool, PinnedPool):
                worker.core.pool.unpin_all()
            check_worker(worker.core)
        for kvstore in self.kvstores.values():
            check_integrity(kvstore.core)

    def loaded_tokens(self) -> Counter[str]:
        """Whose KV was brought to GPUs once it was warm, by where it was."""
        found = self._pages_by_tier()
        found.subtract(self._pages_before)
        plant = self.plant
        num_tokens = plant.block_tokens * plant.grain
        return Counter({tier: num * num_tokens // plant.num_layers for tier, num in found.items()})

    def _pages_by_tier(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for kvstore in self.kvstores.values():
            found.update(kvstore.core.counts.pages_by_tier())
        return found

    def _on_warm(self) -> None:
        self.stats.on_warm()
        self._pages_before = self._pages_by_tier()
        self._outcomes_before = advisory_outcomes()

    def _sample(self, until_ns: int) -> None:
        timeline = self.deployment.timeline
        self.stats.loads.append([len(worker.core.turns) for worker in self.workers])
        if timeline.now_ns < until_ns:
            timeline.after(SAMPLE_NS, partial(self._sample, until_ns))


def _new_deployment(options: ClusterOptions, plant: Plant) -> SimDeployment:
    """What all processes share: time, network and model, without faults."""
    timeline = Timeline()
    wires = ReferenceWires(timeline, Random(f"network {options.seed}"))
    wires.weather.delay_max_ns = WIRE_MAX_NS
    model = Model(
        num_layers=plant.num_layers,
        block_tokens=plant.block_tokens,
        page_bytes=plant.page_bytes,
        max_model_len=plant.profile.max_model_len,
        vocab_size=VOCAB,
    )
    return SimDeployment(
        timeline=timeline,
        random=Random(f"cluster {options.seed}"),
        fault_random=Random(0),
        agent_random=Random(0),
        fault_kinds=frozenset(),
        wires=wires,
        model=model,
        is_crowded=False,
        eviction=options.eviction,
        is_scattered=False,
        disk_bytes_max=plant.disk_bytes,
        has_peers=True,
        placement=DEFAULT_POLICY,
        expiries=None,
        num_shards=options.schedulers,
    )
