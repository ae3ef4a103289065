"""The kvstore of one host: keeps its workers' KV in memory, on disk and in an object store."""

import asyncio
import sys

from services.kvstore.adapters.copies import Sources
from services.kvstore.adapters.objects import AdapterObjects
from services.kvstore.adapters.service import Adapters
from services.kvstore.config import KvstoreConfig
from services.kvstore.core import KvCore, Limits
from services.kvstore.core.integrity import check_integrity
from services.kvstore.core.registry import RegistryLimits
from services.kvstore.handlers import Handlers
from services.kvstore.machine import open_ports, take_folders
from services.kvstore.performer import Performer
from services.kvstore.ports import Ports
from services.kvstore.telemetry import Telemetry
from services.kvstore.tiers.disk.found import found_blocks, lasting
from shared.errors import ConfigError
from shared.service import Runtime

NS_PER_S = 1_000_000_000
TICK_S = 1.0
SWITCH_S = 0.0005  # at most so long a thread beside the event loop computes while that waits
CHECK_EVERY_S = 60.0
CHECK_PAGES_MAX = 65_536  # of all arenas: a check of so many holds up the event loop for some 5 ms
NOTED_SHARE = 24  # a block's last use is written down once in this part of its expiry


async def main(runtime: Runtime, config: KvstoreConfig) -> None:
    """Run the kvstore of this host until the runtime stops.

    Raises:
        ConfigError: a setting is wrong, or a folder cannot be used; names the setting.
    """
    sys.setswitchinterval(SWITCH_S)
    with lasting():
        sizes = take_folders(runtime, config)
        ports = await open_ports(runtime, config, sizes)
        service = KvService(runtime, config, ports, limits(config, sizes.disk_bytes))
    await serve(runtime, config, ports, service)


async def serve(
    runtime: Runtime, config: KvstoreConfig, ports: Ports, service: "KvService"
) -> None:
    """Serve until the runtime stops."""
    runtime.stack.push_async_callback(service.close)
    objects = None if ports.objects is None else AdapterObjects(ports.objects, config.host_id)
    sources = Sources(
        transport=ports.peers, address=service.peer_address, objects=objects,
        num_bytes_max=config.adapter_bytes_max, serves=service.serves,
    )  # fmt: skip
    adapters = Adapters(
        runtime, config.host_id, ports.adapters, ports.redis, registry_limits(config), sources
    )
    try:
        await adapters.open()
    except OSError as error:
        raise ConfigError(f"SYMPHONY_DATA_DIR={str(config.data_dir)!r}: {error}") from None
    await service.serve()
    await adapters.serve()
    await runtime.ready()
    await runtime.stopping.wait()


class KvService:
    """One running kvstore. Learns at once what is on the disk.

    Args:
        limits: of its core.
    """

    def __init__(
        self, runtime: Runtime, config: KvstoreConfig, ports: Ports, limits: Limits
    ) -> None:
        runtime.process = config.host_id
        self._runtime = runtime
        self._leases = ports.leases
        self._memory = ports.memory
        clock = runtime.clock
        self._core = core = KvCore(
            limits, first_ticket=clock.wall_ns() // 1000, host_id=config.host_id
        )
        runtime.parts["kv"] = core
        self._performer = Performer(runtime, core, ports, redis_ttl_s(config))
        self._handlers = Handlers(
            runtime, core, ports, self._performer, config.host_id, config.adapters_path
        )
        self._telemetry = Telemetry(core, self._performer.peering.counts)
        self._tasks: list[asyncio.Task[None]] = []
        now_ns = clock.now_ns()
        found = found_blocks(ports.scan, now_ns, clock.wall_ns() // NS_PER_S)
        self._performer.perform(core.on_disk_found(found, now_ns, was_reset=ports.was_reset))

    def serves(self, fingerprint: str) -> bool:
        """Whether a worker of this host serves this model."""
        return any(fingerprint in worker.shapes for worker in self._core.workers)

    @property
    def peer_address(self) -> str:
        """Where other hosts fetch; empty: nowhere."""
        return self._performer.peering.address

    async def serve(self) -> None:
        """Subscribe, and start what runs beside the calls."""
        await self._handlers.serve()
        self._performer.start()
        self._tasks = [
            self._runtime.spawn(self._tick(), "kv-tick"),
            self._runtime.spawn(check_for_ever(self._core), "kv-integrity"),
        ]

    async def close(self) -> None:
        """Answer no more calls, write everything down, remove the arenas."""
        await self._handlers.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._performer.close()
        self._telemetry.export()
        self._leases.close()
        self._memory.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_ns = self._runtime.clock.now_ns()
            for worker_id, incarnation in self._leases.poll():
                self._leases.drop(worker_id, incarnation)
                effects = self._core.on_worker_gone(worker_id, incarnation, now_ns)
                self._performer.perform(effects)
            self._performer.tick()
            self._telemetry.export()


async def check_for_ever(core: KvCore) -> None:
    """Check the core's integrity now and then, while nothing is loaded or written.

    Raises:
        AssertionError: it does not hold.
    """
    while True:
        await asyncio.sleep(CHECK_EVERY_S)
        is_idle = not core.is_loading and not core.num_writing
        if is_idle and core.usage.arena_pages <= CHECK_PAGES_MAX:
            check_integrity(core)


def limits(config: KvstoreConfig, disk_bytes_max: int) -> Limits:
    """The core's, as configured."""
    expiry_ns = int(config.expiry_s * NS_PER_S)
    return Limits(
        disk_bytes_max=disk_bytes_max,
        expiry_ns=expiry_ns,
        noted_ns=expiry_ns // NOTED_SHARE,
        disk_bytes_per_s=config.disk_bytes_per_s,
        has_objects=config.objects_url is not None,
        objects_bytes_max=config.objects_bytes_max,
        objects_expiry_ns=int(config.objects_expiry_s * NS_PER_S),
        objects_rest_ns=int(config.objects_rest_s * NS_PER_S),
        objects_bytes_per_s=config.objects_bytes_per_s,
        packs_objects=config.objects_compression == "zstd",
    )


def registry_limits(config: KvstoreConfig) -> RegistryLimits:
    """What tenants may have of adapters, as configured."""
    return RegistryLimits(
        adapter_bytes_max=config.adapter_bytes_max,
        tenant_adapters_max=config.tenant_adapters_max,
        tenant_bytes_max=config.tenant_adapter_bytes_max,
        adapters_max=config.adapters_max,
        disk_bytes_max=config.adapter_disk_bytes_max,
        keep_ns=int(config.adapter_keep_s * NS_PER_S),
    )


def redis_ttl_s(config: KvstoreConfig) -> float:
    """How long what Redis holds of a session outlives its last use here."""
    expiry_s = config.expiry_s
    if config.objects_url is not None:
        expiry_s = max(expiry_s, config.objects_expiry_s)
    return expiry_s * (1 + 1 / NOTED_SHARE)
