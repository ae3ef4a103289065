"""One deployment: who is in it, and what they share."""

from dataclasses import dataclass
from itertools import cycle
from random import Random
from typing import get_args

from loadtest.sim.arena import PAGE_BYTES
from loadtest.sim.bucket import Bucket
from loadtest.sim.client import Store
from loadtest.sim.outsider import Outsider
from loadtest.sim.process import PlainGround, Process
from loadtest.sim.redis import server_on
from loadtest.sim.services.deployment import SimDeployment
from loadtest.sim.services.faults import Faults, draw_faults
from loadtest.sim.services.frontend import Frontend, publish_adapters
from loadtest.sim.services.hint_watch import HintWatch
from loadtest.sim.services.kvstore import Host, Kvstore
from loadtest.sim.services.ledger import Ledger
from loadtest.sim.services.model import Model
from loadtest.sim.services.scheduler import (
    Leadership,
    Role,
    Scheduler,
    Tracker,
    events_dropped,
    tap_turns,
)
from loadtest.sim.services.service import Service
from loadtest.sim.services.worker import Worker
from loadtest.sim.services.worker_watch import tap_workers
from loadtest.sim.timeline import MS, SECOND, Timeline
from loadtest.sim.wires import Wires
from loadtest.world.clients import Clients
from loadtest.world.hinters import ALL_TENANTS, Hinters
from services.scheduler.core import DEFAULT_POLICY, POLICIES
from shared.eviction import EvictionName
from shared.ids import HostId

CROWDED_SHARE = 0.2  # of worlds: twice as many sessions, all busy, on one small worker, and
CROWDED_SLOWNESS = (1, 100, 1000, 3000)  # a disk as slow as this: history often comes too late
EVICTIONS: tuple[EvictionName, ...] = get_args(EvictionName)
DEFAULT_PLACEMENT_SHARE = 0.5
SCATTERED_SHARE = 0.7  # of worlds with several hosts: turns go where their history is not
BUCKET_SHARE = 0.4  # of worlds: there is an object store, and
PEERS_SHARE = 0.4  # of those: history comes from other hosts, too
EXPIRIES_SHARE = 0.3  # of worlds: turns say how long their KV is kept
FORMS_SHARE = 0.2  # of worlds: some workers store KV as int8
TWINS_SHARE = 0.15  # of worlds: people send the same session's next turn from two places
DISKS_BYTES_MAX = (1 << 40, 40 * PAGE_BYTES, 8 * PAGE_BYTES)
SHARDS = (1, 1, 1, 2, 3)  # schedulers among which turns are divided
TOKEN_NS = (
    MS // 10,
    MS,
    3 * MS,
)  # so fast that history is recomputed, or loaded
TRACKER_SHARDS = (1, 1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How large and how long a world is.

    Attributes:
        faults_for_ns: as long as things go wrong; turns are asked for during that time.
        calm_max_ns: by then, with nothing going wrong, everything must be over.
        settle_ns: time for a new leader and new connections until all requests are served again.
        rest_ns: after that no process may hold anything.
        stall_max_ns: how long a turn may stand still while a worker could serve it.
        calm_stall_max_ns: the same, without losses, frozen or disconnected processes; less
            than it takes a frontend to submit again.
        unserved_ns: how long there may have been no worker before a turn was refused.
    """

    faults_for_ns: int = 8 * SECOND
    calm_max_ns: int = 150 * SECOND
    settle_ns: int = 4 * SECOND
    rest_ns: int = 8 * SECOND
    unserved_ns: int = 6 * SECOND
    stall_max_ns: int = 20 * SECOND
    calm_stall_max_ns: int = 8 * SECOND
    sessions_max: int = 7
    workers_max: int = 3
    events_max: int = 400_000


class World:
    """Everybody, started, and nothing has happened yet. `run.py` lets it.

    Attributes:
        faults: that are to happen (`unleash.py`).
    """

    def __init__(self, seed: int, options: Options, faults: Faults | None = None) -> None:
        self.seed, self.options = seed, options
        self.faults = draw_faults(seed, options.faults_for_ns) if faults is None else faults
        memory_random, tracker_random = Random(f"memory {seed}"), Random(f"trackers {seed}")
        random = Random(f"world {seed}")
        num_trackers = tracker_random.choice([1, 2])
        model = Model(
            num_layers=random.choice([1, 2]),
            step_ns=random.choice([5, 20, 60]) * MS,
            token_ns=Random(f"tokens {seed}").choice(TOKEN_NS),
        )
        hosts = [HostId(f"h{number}") for number in range(random.choice([1, 2, 3]))]
        num_blocks = 10 if "arena" in self.faults.kinds else random.choice([20, 80])
        is_crowded = random.random() < CROWDED_SHARE
        slowness = random.choice(CROWDED_SLOWNESS) if is_crowded else 1
        self.bucket = Bucket() if memory_random.random() < BUCKET_SHARE else None
        self.deployment = deployment = self._draw_deployment(
            random, memory_random, tracker_random, model, len(hosts), is_crowded
        )
        timeline = deployment.timeline
        self.redis = server_on(timeline)
        publish_adapters(self.redis, timeline)
        self.ledger = ledger = Ledger(timeline)
        tap_turns(deployment.wires, ledger)
        tap_workers(deployment.wires)
        HintWatch(deployment.wires)
        self.store = Store()
        self._dropped_before = events_dropped()
        self._add_hosts(hosts, model.num_layers * num_blocks, slowness)
        self._add_leaders(tracker_random, num_trackers)
        self.frontends = [
            Frontend(deployment, self.store, self.redis, ALL_TENANTS, number)
            for number in range(random.choice([1, 2]))
        ]
        self.processes: list[Process] = [
            *self.kvstores.values(), *self.workers, *self.schedulers, *self.trackers,
            *self.frontends,
        ]  # fmt: skip
        self._services = [each for each in self.processes if isinstance(each, Service)]
        for process in self.processes:
            process.start()
        self._add_clients()

    def _draw_deployment(
        self,
        random: Random,
        memory_random: Random,
        tracker_random: Random,
        model: Model,
        num_hosts: int,
        is_crowded: bool,
    ) -> SimDeployment:
        seed, timeline = self.seed, Timeline()
        expiries, twins = Random(f"expiries {seed}"), Random(f"twins {seed}")
        forms = Random(f"forms {seed}")
        eviction = memory_random.choice(EVICTIONS)
        memory_random.random()  # of no use any more: each seed stays the world that it was
        return SimDeployment(
            timeline=timeline,
            random=random,
            fault_random=Random(f"details {seed}"),
            agent_random=Random(f"agents {seed}"),
            fault_kinds=self.faults.kinds,
            wires=Wires(timeline, Random(f"network {seed}")),
            model=model,
            is_crowded=is_crowded,
            eviction=eviction,
            is_scattered=num_hosts > 1 and memory_random.random() < SCATTERED_SHARE,
            disk_bytes_max=memory_random.choice(DISKS_BYTES_MAX),
            has_peers=self.bucket is None or memory_random.random() < PEERS_SHARE,
            placement=_draw_placement(memory_random),
            expiries=expiries if expiries.random() < EXPIRIES_SHARE else None,
            num_shards=Random(f"shards {seed}").choice(SHARDS),
            forms=forms if forms.random() < FORMS_SHARE else None,
            num_tracker_shards=tracker_random.choice(TRACKER_SHARDS),
            twins=twins if twins.random() < TWINS_SHARE else None,
        )

    def _add_hosts(self, hosts: list[HostId], num_pages: int, slowness: int) -> None:
        """A kvstore on each, and workers on some.

        Args:
            num_pages: of each arena.
            slowness: of disks.
        """
        deployment, store, workers_max = self.deployment, self.store, self.options.workers_max
        self.kvstores: dict[HostId, Kvstore] = {}
        for host_id in hosts:
            host = Host(host_id, self.redis, self.bucket, self.kvstores)
            self.kvstores[host_id] = Kvstore(deployment, store, host, num_pages, slowness)
        num_workers = 1
        if not deployment.is_crowded:
            num_workers = deployment.random.randint(min(len(hosts), workers_max), workers_max)
        self.workers = [
            Worker(deployment, self.kvstores[host_id], number, store, self.ledger.turn_of)
            for number, host_id in zip(range(num_workers), cycle(hosts), strict=False)
        ]

    def _add_leaders(self, tracker_random: Random, num_trackers: int) -> None:
        """Schedulers and trackers; at most one leadership of each has a spare."""
        deployment, store = self.deployment, self.store
        has_spare = deployment.random.choice([False, True])
        role: Role = "shard" if deployment.num_shards > 1 else "all"
        roles: list[tuple[Role, int]] = [(role, shard) for shard in range(deployment.num_shards)]
        if role == "shard":  # which batches of the shards go to which worker
            roles.append(("rank", 0))
        self.scheduling = [Leadership() for _ in roles]
        with_spare = tracker_random.randrange(len(roles)) if has_spare else None
        self.schedulers = [
            Scheduler(deployment, store, self.scheduling[index], number, *of_index)
            for index, of_index in enumerate(roles)
            for number in range(1 + (index == with_spare))
        ]
        self.tracking = [Leadership() for _ in range(deployment.num_tracker_shards)]
        with_spare = tracker_random.randrange(len(self.tracking)) if num_trackers > 1 else None
        self.trackers = [
            Tracker(deployment, store, leadership, number, shard)
            for shard, leadership in enumerate(self.tracking)
            for number in range(1 + (shard == with_spare))
        ]

    def _add_clients(self) -> None:
        seed, deployment, asking_ns = self.seed, self.deployment, self.options.faults_for_ns
        timeline, outside = deployment.timeline, Random(f"outside {seed}")
        ground = PlainGround(timeline, outside, deployment.wires)
        self.outsider = Outsider(ground, outside, asking_ns)
        self.outsider.start()
        num_sessions = 2 * self.options.sessions_max
        if not deployment.is_crowded:
            num_sessions = deployment.random.randint(2, self.options.sessions_max)
        hinters = Hinters(timeline, self.frontends, Random(f"hints {seed}"), asking_ns)
        hinters.announce_far(Random(f"far hints {seed}"), num_sessions)
        self.clients = Clients(
            deployment, self.frontends, self.ledger, num_sessions, asking_ns, hinters
        )

    @property
    def is_whole(self) -> bool:
        """The remaining processes are healthy again, and no slow message is in flight."""
        bucket = self.bucket
        is_slow = bucket is not None and self.deployment.timeline.now_ns < bucket.slow_until_ns
        is_well = all(process.is_well for process in self.processes)
        return self.redis.is_up and is_well and not is_slow

    @property
    def num_dropped(self) -> int:
        """Events that found no room in a queue of a scheduler."""
        return events_dropped() - self._dropped_before

    def dispose(self) -> None:
        """Close what still waits in services, once the simulation is over."""
        for service in self._services:
            service.dispose()

    def lose_host(self, host_id: HostId) -> None:
        """Everybody on this machine dies for good, and with it all that was kept there."""
        kvstore = self.kvstores.pop(host_id)
        gone = [kvstore, *(worker for worker in self.workers if worker.host_id == host_id)]
        for process in gone:
            process.is_gone = True
            process.crash()
            self.processes.remove(process)
        kvstore.disk.reset()
        kvstore.dispose()
        self.workers = [worker for worker in self.workers if worker.host_id != host_id]

    @property
    def leading_trackers(self) -> list[Tracker]:
        """Of each shard the one that leads.

        Raises:
            AssertionError: none does, or several do.
        """
        leaders = [tracker for tracker in self.trackers if tracker.is_leading]
        shards = [tracker.shard for tracker in leaders]
        assert shards == [*range(self.deployment.num_tracker_shards)], (
            f"of {shards} a tracker leads"
        )
        return leaders


def _draw_placement(random: Random) -> str:
    if random.random() < DEFAULT_PLACEMENT_SHARE:
        return DEFAULT_POLICY
    return random.choice(list(POLICIES))
