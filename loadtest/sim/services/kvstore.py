"""A host's kvstore: the production service, over a disk, peers and an object store that fail."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.sim.arena import PAGE_BYTES, SimArena
from loadtest.sim.bucket import Bucket, SimObjects
from loadtest.sim.client import Store
from loadtest.sim.disk import SimDisk
from loadtest.sim.peers import SimTransport
from loadtest.sim.process import Process
from loadtest.sim.redis import RedisServer, SimRedis
from loadtest.sim.services.checks import EXPIRY_NS, check_expired, check_kvstore
from loadtest.sim.services.deployment import SimDeployment
from loadtest.sim.services.kv_watch import KvWatch
from loadtest.sim.services.service import Service
from loadtest.sim.threads import Pool
from loadtest.sim.timeline import MS, SECOND
from services.kvstore.adapters.files import Found
from services.kvstore.config import KvstoreConfig
from services.kvstore.core import DiskWrite, KvCore, Limits
from services.kvstore.index.redis_link import TIMEOUT_S
from services.kvstore.leases import LeaseFiles, LockedFiles
from services.kvstore.peers.sources import PageSource
from services.kvstore.ports import Ports
from services.kvstore.service import KvService, limits, serve
from services.kvstore.tiers.disk import stored_bytes
from services.kvstore.tiers.values import HEADER_BYTES
from shared.errors import NoCapacity
from shared.ids import HostId
from shared.service import Runtime

TICKET_NS = 4 * SECOND
GROWTH_NS = 50 * MS  # until more of an arena has memory
LAG_NS = 40 * MS  # of a crowded host
OBJECTS_REST_NS = SECOND
OBJECTS_BYTES_MAX = 64 * (HEADER_BYTES + PAGE_BYTES)  # old sessions have to leave
DROPS_MAX = 2
NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Host:
    """Attributes:
    others: kvstores of the deployment, by host, this one included.
    bucket: None: there is no object store.
    """

    host_id: HostId
    redis: RedisServer
    bucket: Bucket | None
    others: "dict[HostId, Kvstore]"


class Kvstore(Service):
    """Args:
    num_pages: of its arena, once that has grown.

    Attributes:
        disk: survives a restart.
        files: what of the host's shared memory has a name: arenas.
        is_link_cut, is_lying, served: see `peers.PeerHost`.
        watch: over its core, of this life.
    """

    deployment: SimDeployment
    kind = "kvstore"

    def __init__(
        self, deployment: SimDeployment, store: Store, host: Host, num_pages: int, slowness: int = 1
    ) -> None:
        super().__init__(deployment, f"kvstore-{host.host_id}", store)
        self.host_id = host.host_id
        self._host = host
        self._num_pages = num_pages
        self.disk = SimDisk(self._random, slowness)
        self.disk.on_write = self._check_write
        self.files: dict[Path, SimArena] = {}
        self._locks: dict[Path, tuple[Process, int] | None] = {}
        self.served: dict[int, PageSource] = {}
        self.is_link_cut = self.is_lying = False

    @property
    def core(self) -> KvCore:
        """Of this life."""
        core: KvCore = self.part("kv")
        return core

    def config(self) -> KvstoreConfig:
        deployment = self.deployment
        num_layers = deployment.model.num_layers
        num_blocks = deployment.disk_bytes_max // (num_layers * PAGE_BYTES)
        return KvstoreConfig(
            instance=self.name,
            host_id=self.host_id,
            data_dir=Path("/sim") / self.host_id,
            arena_dir=Path("/sim/arenas") / self.host_id,
            disk_bytes_max=num_blocks * stored_bytes(num_layers, PAGE_BYTES),
            expiry_s=EXPIRY_NS / NS_PER_S,
            objects_url=None if self._host.bucket is None else "s3://bucket",
            objects_bytes_max=OBJECTS_BYTES_MAX,
            objects_expiry_s=EXPIRY_NS / NS_PER_S,
            objects_rest_s=OBJECTS_REST_NS / NS_PER_S,
        )

    def limits(self, config: KvstoreConfig) -> Limits:
        """Small, so that they are reached."""
        return replace(
            limits(config, config.disk_bytes_max),
            ticket_ns=TICKET_NS,
            drops_max=DROPS_MAX,
            load_bytes_max=(2 if self.deployment.is_scattered else 8) * PAGE_BYTES,
            eviction=self.deployment.eviction,
        )

    async def main(self, runtime: Runtime, config: KvstoreConfig) -> None:
        """As the service's `main`, on what this host has."""
        ports = self._ports(runtime, config)
        service = KvService(runtime, config, ports, self.limits(config))
        self.watch = KvWatch(self.core, self.deployment.fault_kinds)
        await serve(runtime, config, ports, service)

    def on_start(self) -> None:
        super().on_start()
        if self.deployment.is_crowded:
            self.loop.lag_max_ns = LAG_NS

    def on_crash(self) -> None:
        self.served.clear()
        super().on_crash()

    def on_idle(self) -> None:
        if self.runtime is not None and self.watch.has_ticked:
            self.watch.has_ticked = False
            self.check_expired()
        super().on_idle()

    def check(self) -> None:
        if self.runtime is not None and (arena := self.arena) is not None:
            check_kvstore(self.core, arena, self.watch.unread)

    def check_expired(self) -> None:
        """No tier keeps expired blocks."""
        check_expired(self.core, self.now_ns)

    def end(self, restart_ns: int) -> None:
        """It stops in order: what was committed is on disk, if that takes it."""
        core, disk = self.core, self.disk
        is_written = core is None or not core.num_writing
        assert is_written or disk.is_full or disk.is_damaged, f"{self.name} leaves KV unwritten"
        super().end(restart_ns)

    # What workers do on this host.

    @property
    def arena(self) -> SimArena | None:
        """The one there is now."""
        return next(iter(self.files.values()), None)

    def attach(self, path: Path) -> SimArena:
        """Map an arena.

        Raises:
            FileNotFoundError: its file is gone.
        """
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def lock(self, path: Path, holder: Process) -> None:
        """Lock a lease file, until this life of the process is over.

        Raises:
            FileNotFoundError: it is gone.
        """
        if path not in self._locks:
            raise FileNotFoundError(path)
        self._locks[path] = (holder, holder.life)

    def release_lock(self, path: Path) -> None:
        """Unlock a lease file, as the kernel does when a process ends."""
        self._locks[path] = None

    def _ports(self, runtime: Runtime, config: KvstoreConfig) -> Ports:
        scan, was_reset = self.disk.start()
        self.files.clear()
        self._locks.clear()
        deployment, random, loop = self.deployment, self._random, self.loop
        threads = loop.threads
        memory = SimMemory(self, config.arena_path, self._num_pages, deployment)

        def fail(error: BaseException) -> None:
            loop.call_soon(runtime.fail, "a thread failed", error)

        peers = None
        if deployment.has_peers:
            peers = SimTransport(
                self, self._host.others, memory.by_page_bytes, threads, random, fail
            )
        objects = None
        if self._host.bucket is not None:
            objects = SimObjects(
                self._host.bucket, deployment.timeline, random, lambda: self.wall_ns,
                lambda: self.is_lying,
            )  # fmt: skip
        adapters: Any = NoAdapters()
        return Ports(
            disk=self.disk,
            scan=scan,
            was_reset=was_reset,
            memory=memory,
            leases=LeaseFiles(config.arena_path, SimLocks(self._locks)),
            redis=SimRedis(self._host.redis, deployment.timeline, self, loop, random, TIMEOUT_S),
            objects=objects,
            peers=peers,
            adapters=adapters,
            executors=lambda name, num: Pool(threads, num, fail),
        )

    def _check_write(self, write: DiskWrite, pages: list[bytes]) -> None:
        """Pages that are written stay what they are, and all hosts write the same for a block."""
        arena = self.arena
        assert arena is not None
        words = [arena.word(page)[1] for page in write.pages]
        assert all(word.name == "READY" for word in words), "a page was taken from under the writer"
        for other in self._host.others.values():
            held = other.disk.blocks.get(write.key)
            is_alike = held is None or held.is_damaged or held.pages == pages
            assert is_alike, f"{other.name} has another {write.key.hex()}"


class SimMemory:
    """One life's `HostMemory`: an arena that grows."""

    def __init__(
        self, kvstore: Kvstore, folder: Path, num_pages: int, deployment: SimDeployment
    ) -> None:
        self._kvstore = kvstore
        self._folder = folder
        self._num_pages = num_pages
        self._contents = deployment.contents
        self.on_grown: Callable[[int, int], None] = lambda page_bytes, num_pages: None
        self.by_page_bytes: dict[int, SimArena] = {}

    async def get(self, page_bytes: int, num_layers: int) -> SimArena:
        if (arena := self.by_page_bytes.get(page_bytes)) is not None:
            return arena
        if self._num_pages < 2 * num_layers or page_bytes != PAGE_BYTES:
            raise NoCapacity(f"{self._folder} has no room")
        path = self._folder / f"kv-{page_bytes}.arena"
        arena = SimArena(path, self._num_pages, self._contents)
        arena.filled[0] = self._num_pages // 2
        self.by_page_bytes[page_bytes] = self._kvstore.files[path] = arena
        self._kvstore.later(GROWTH_NS, partial(self._grow, arena))
        return arena

    def num_ready(self, page_bytes: int) -> int:
        return int(self.by_page_bytes[page_bytes].filled[0])

    def capacity_bytes(self, page_bytes: int) -> int:
        return self._num_pages * page_bytes

    def grow(self, page_bytes: int, num_pages: int) -> None:
        """It grows anyway."""

    def close(self) -> None:
        for arena in self.by_page_bytes.values():
            with suppress(KeyError):
                del self._kvstore.files[arena.path]
        self.by_page_bytes.clear()

    def _grow(self, arena: SimArena) -> None:
        """More of it has memory."""
        num_ready = min(int(arena.filled[0]) + self._num_pages // 4 + 1, self._num_pages)
        arena.filled[0] = num_ready
        self.on_grown(arena.page_bytes, num_ready)
        if num_ready < self._num_pages:
            self._kvstore.later(GROWTH_NS, partial(self._grow, arena))


class SimLocks(LockedFiles):
    """Files whose locks end with the processes that hold them."""

    def __init__(self, locks: dict[Path, tuple[Process, int] | None]) -> None:
        self._locks = locks
        self._paths: list[Path] = []

    def make(self, path: Path) -> int:
        self._locks[path] = None
        self._paths.append(path)
        return len(self._paths) - 1

    def is_locked(self, file_number: int) -> bool:
        held = self._locks[self._paths[file_number]]
        return held is not None and held[0].is_up and held[0].life == held[1]

    def remove(self, path: Path, file_number: int) -> None:
        self._locks.pop(path, None)


class NoAdapters:
    """A store of adapters without any."""

    def scan(self) -> Found:
        return Found([], {})
