"""The production service on a machine in memory, on one event loop whose clock jumps."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from services.kvstore.config import KvstoreConfig
from services.kvstore.service import KvService, limits, serve
from shared.arena import PageState, checksum
from shared.blocks import BLOCK_TOKENS, BlockKey, chain_keys, pack_keys, root_key
from shared.errors import NotFound, PeerUnavailable
from shared.ids import HostId, SessionId, TenantId, WorkerId
from shared.locations import decode_lives, decode_locations, location_redis_key, objects_of
from shared.owners import owner_key
from shared.service import Runtime
from shared.wire import messages as m
from shared.wire import subjects
from shared.wire.messages import pack_ints, unpack_ints
from tests.jumping_loop import JumpingLoop, LoopClock
from tests.unit.kvstore.fakes import (
    Machine,
    MemoryArenas,
    MemoryBucket,
    MemoryBus,
    MemoryLeases,
    MemoryRedis,
    Wires,
)

T = TypeVar("T")

LAYERS, PAGE_BYTES, NUM_PAGES = 2, 512, 64
TENANT, SESSION = TenantId("acme"), SessionId("chat")
OWNER = owner_key(TENANT, SESSION)
TOKENS = list(range(4 * BLOCK_TOKENS))
KEYS = chain_keys(root_key("model", TENANT), TOKENS)
NOWHERE = Path("/nowhere/kvstore")
W1 = WorkerId("w1")


class Deployment:
    """What several hosts share.

    Attributes:
        runtimes: of kvstores that run, by host.
    """

    def __init__(self, *, has_bucket: bool = False, has_peers: bool = True) -> None:
        self.redis = MemoryRedis()
        self.wires = Wires()
        self.bucket = MemoryBucket() if has_bucket else None
        sources: dict[tuple[str, int], Any] = {}
        self.machines = [
            Machine(number, self.redis, sources, self.bucket, has_peers) for number in range(2)
        ]

    @asynccontextmanager
    async def kvstore(self, number: int = 0) -> AsyncIterator["Worker"]:
        """One life of a host's kvstore, and a worker that has opened there."""
        config = KvstoreConfig(
            host_id=HostId(f"h{number}"), data_dir=NOWHERE, arena_dir=NOWHERE, objects_rest_s=1.0,
            objects_url=None if self.bucket is None else "s3://bucket",
        )  # fmt: skip
        bus: Any = MemoryBus(self.wires)
        async with AsyncExitStack() as stack:
            runtime = Runtime("kvstore", config.instance, bus, stack)
            runtime.clock = LoopClock()
            stack.push_async_callback(runtime.cancel_tasks)
            ports, arenas, leases = self.machines[number].start(NUM_PAGES)
            service = KvService(runtime, config, ports, limits(config))
            task = asyncio.ensure_future(serve(runtime, config, ports, service))
            await until(lambda: now(runtime.state == "ready" or task.done()))
            worker = Worker(bus, config.host_id, arenas, leases)
            await worker.open()
            yield worker
            runtime.stopping.set()
            await task
        assert not runtime.exit_code

    async def located(self) -> dict[HostId, int]:
        """Leading blocks of the session by host, as Redis has them."""

        def fields(key: str) -> dict[bytes, bytes]:
            return {name.encode(): data for name, data in self.redis.hashes[key].items()}

        return decode_locations(
            fields(location_redis_key(OWNER)), decode_lives(fields("symphony:kv_hosts"))
        )


class Worker:
    """Calls one kvstore, and has its arena mapped."""

    def __init__(
        self, bus: MemoryBus, host_id: HostId, arenas: MemoryArenas, leases: MemoryLeases
    ) -> None:
        self._bus = bus
        self._host_id = host_id
        self._arenas = arenas
        self._me: dict[str, Any] = {"worker_id": W1, "incarnation": f"i-{host_id}"}
        self.leases = leases

    async def ask(self, subject: Any, message: object) -> Any:
        return await self._bus.request(subject, message, self._host_id)

    async def open(self) -> None:
        message = m.KvOpen(
            **self._me, fingerprint="model", num_layers=LAYERS, page_bytes=PAGE_BYTES
        )
        await self.ask(subjects.KV_OPEN, message)

    async def lease(self, num_pages: int) -> list[int]:
        message = m.KvLease(**self._me, page_bytes=PAGE_BYTES, num_pages=num_pages)
        return unpack_ints((await self.ask(subjects.KV_LEASE, message)).pages)

    async def store(self) -> None:
        """Compute the sequence, commit it, and wait until it is on disk."""
        pages = await self.lease(LAYERS * len(KEYS))
        blocks = [self._computed(at, pages[at * LAYERS :][:LAYERS]) for at in range(len(KEYS))]
        message = m.KvCommit(**self._me, fingerprint="model", page_bytes=PAGE_BYTES, blocks=blocks)
        assert (await self.ask(subjects.KV_COMMIT, message)).num_blocks == len(KEYS)
        await until(lambda: self._has_on_disk(len(KEYS)))

    async def stage(self, kv_at: dict[HostId, int] | None = None) -> m.KvStaged:
        message = m.KvStage(
            **self._me, fingerprint="model", num_layers=LAYERS, page_bytes=PAGE_BYTES,
            keys=pack_keys(KEYS), session_id=SESSION, tenant=TENANT, kv_at=kv_at or {},
        )  # fmt: skip
        staged: m.KvStaged = await self.ask(subjects.KV_STAGE, message)
        return staged

    async def assert_arrives(self, staged: m.KvStaged) -> None:
        """Every staged page holds what was computed, in the end."""
        arena = self._arenas.by_page_bytes[PAGE_BYTES]
        pages, generations = unpack_ints(staged.pages), unpack_ints(staged.generations)

        async def is_there() -> bool:
            return PageState.FILLING not in arena.promises(pages, generations)

        await until(is_there)
        assert (arena.promises(pages, generations) == PageState.READY).all()
        for slot, page in enumerate(pages):
            layer, at = divmod(slot, staged.num_blocks)
            assert np.array_equal(arena.pages[page], bytes_of(KEYS[at], layer))

    async def stats(self) -> m.KvStats:
        """Of this worker's host."""
        replies = await self._bus.gather(subjects.KV_STATS, m.Empty())
        (own,) = [reply for reply in replies if reply.host_id == self._host_id]
        assert isinstance(own, m.KvStats)
        return own

    async def _has_on_disk(self, num_blocks: int) -> bool:
        return (await self.stats()).disk_blocks == num_blocks

    def _computed(self, at: int, pages: list[int]) -> m.KvBlock:
        arena = self._arenas.by_page_bytes[PAGE_BYTES]
        for layer, page in enumerate(pages):
            arena.pages[page] = bytes_of(KEYS[at], layer)
        return m.KvBlock(
            key=KEYS[at].hex(),
            parent=(KEYS[at - 1] if at else root_key("model", TENANT)).hex(),
            tokens=pack_ints(TOKENS[at * BLOCK_TOKENS :][:BLOCK_TOKENS]),
            pages=pack_ints(pages),
            checksums=pack_ints([checksum(arena.pages[page].data) for page in pages], "Q"),
            owner=OWNER.hex(),
        )


def bytes_of(key: BlockKey, layer: int) -> Any:
    seed = int.from_bytes(key, "little") + layer
    return np.random.default_rng(seed).integers(0, 256, PAGE_BYTES, np.uint8)


async def now(value: bool) -> bool:
    return value


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """In the loop's time, which takes none."""
    for _ in range(10_000):
        if await holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the awaited event never came")


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """On a loop of its own; no thread is started, no file made."""
    num_threads = threading.active_count()
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(_awaited(scenario))
    assert threading.active_count() == num_threads and not NOWHERE.exists()


async def _awaited(scenario: Callable[[], Awaitable[None]]) -> None:
    await scenario()


def test_what_was_committed_is_found_after_a_restart_on_the_same_disk() -> None:
    deployment = Deployment()
    disk = deployment.machines[0].disk

    async def scenario() -> None:
        async with deployment.kvstore() as worker:
            assert (await worker.stage()).num_blocks == 0
            await worker.store()
            staged = await worker.stage()
            assert (staged.num_blocks, staged.num_pages_loading) == (len(KEYS), 0)
            await worker.assert_arrives(staged)
            await until(lambda: now(disk.num_syncs > 0))  # by the tick, if nothing else is written
        async with deployment.kvstore() as worker:
            staged = await worker.stage()
            assert staged.num_blocks == len(KEYS) and staged.coming_from == "disk"
            assert staged.num_pages_loading == LAYERS * len(KEYS)
            await worker.assert_arrives(staged)

            async def is_located() -> bool:
                return await deployment.located() == {"h0": len(KEYS)}

            await until(is_located)

    run(scenario)


@pytest.mark.parametrize("source", ["peer", "objects"])
def test_another_host_takes_it_from_where_it_is(source: str) -> None:
    is_peer = source == "peer"
    deployment = Deployment(has_bucket=not is_peer, has_peers=is_peer)
    kv_at = {HostId("h0") if is_peer else objects_of(HostId("h0")): len(KEYS)}

    async def scenario() -> None:
        async with deployment.kvstore(0) as first, deployment.kvstore(1) as second:
            await first.store()
            if deployment.bucket is not None:
                objects = deployment.bucket.objects
                await until(lambda: now(bool(objects)))
            staged = await second.stage(kv_at)
            assert (staged.num_blocks, staged.coming_from) == (len(KEYS), source)
            await second.assert_arrives(staged)

    run(scenario)


def test_the_pages_of_a_worker_that_ended_come_back() -> None:
    async def scenario() -> None:
        async with Deployment().kvstore() as worker:
            assert len(await worker.lease(NUM_PAGES)) == NUM_PAGES
            worker.leases.ended |= worker.leases.open

            async def is_free() -> bool:
                return (await worker.stats()).arena_pages_used == 0

            await until(is_free)
            with pytest.raises(NotFound, match="not open"):
                await worker.lease(1)

    run(scenario)


def test_deleted_blocks_are_gone_from_the_disk_when_that_is_answered() -> None:
    deployment = Deployment()

    async def scenario() -> None:
        async with deployment.kvstore() as worker:
            await worker.store()
            bus: Any = MemoryBus(deployment.wires)
            message = m.KvDelete(session_id=SESSION, tenant=TENANT)
            deleted = await bus.request(subjects.SESSION_DELETE, message)
            assert deleted.num_blocks == len(KEYS) and not deployment.machines[0].disk.blocks
            assert (await worker.stage()).num_blocks == 0

    run(scenario)


def test_a_kvstore_that_stops_refuses_calls_and_writes_what_waits() -> None:
    deployment = Deployment()

    async def scenario() -> None:
        async with deployment.kvstore() as worker:
            await worker.store()
            handlers = dict(deployment.wires.handlers)
            (late,) = handlers["symphony.kv.h0.lease"]
        assert not handlers["symphony.kv.h0.lease"], "it is unsubscribed"
        with pytest.raises(PeerUnavailable, match="stopping"):
            await late(b'{"worker_id":"w1","incarnation":"i","page_bytes":1,"num_pages":1}')
        assert len(deployment.machines[0].disk.blocks) == len(KEYS)

    run(scenario)
