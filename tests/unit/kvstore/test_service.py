"""The production service in a simulated process: two hosts, and a worker that calls them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from loadtest.sim.arena import PAGE_BYTES, SimArena
from loadtest.sim.bucket import Bucket
from loadtest.sim.client import Store
from loadtest.sim.memory import Content
from loadtest.sim.redis import server_on
from loadtest.sim.services.deployment import SimDeployment
from loadtest.sim.services.kvstore import Host, Kvstore
from loadtest.sim.services.model import Model
from loadtest.sim.services.service import Service
from loadtest.sim.timeline import SECOND, Timeline
from loadtest.sim.wires import Wires
from services.scheduler.core import DEFAULT_POLICY
from shared.arena import PageState, checksum
from shared.blocks import BLOCK_TOKENS, chain_keys, pack_keys, root_key
from shared.errors import NotFound, SymphonyError
from shared.ids import HostId, SessionId, TenantId, WorkerId
from shared.locations import (
    KV_HOSTS_KEY,
    decode_lives,
    decode_locations,
    location_redis_key,
    objects_of,
)
from shared.owners import owner_key
from shared.runtime.config import ServiceConfig
from shared.service import Runtime
from shared.wire import messages as m
from shared.wire import subjects
from shared.wire.messages import pack_ints, unpack_ints

LAYERS, NUM_PAGES = 2, 64
TENANT, SESSION = TenantId("acme"), SessionId("chat")
OWNER = owner_key(TENANT, SESSION)
TOKENS = list(range(4 * BLOCK_TOKENS))
KEYS = chain_keys(root_key("model", TENANT), TOKENS)
W1 = WorkerId("w1")
ENDS_NS, EVENTS_MAX = 120 * SECOND, 200_000


class Hosts:
    """Two hosts with a kvstore each; nothing has started."""

    def __init__(self, *, has_bucket: bool = False, has_peers: bool = True) -> None:
        self.timeline = timeline = Timeline()
        random = Random(7)
        self.deployment = SimDeployment(
            timeline=timeline, random=random, fault_random=random, agent_random=random,
            fault_kinds=frozenset(), wires=Wires(timeline, random), model=Model(num_layers=LAYERS),
            is_crowded=False, eviction="layer", is_scattered=False,
            disk_bytes_max=1 << 40, has_peers=has_peers, placement=DEFAULT_POLICY, expiries=None,
        )  # fmt: skip
        self.redis, self.store = server_on(timeline), Store()
        self.bucket = Bucket() if has_bucket else None
        self.kvstores: dict[HostId, Kvstore] = {}
        for name in ("h0", "h1"):
            host = Host(HostId(name), self.redis, self.bucket, self.kvstores)
            self.kvstores[host.host_id] = Kvstore(self.deployment, self.store, host, NUM_PAGES)

    def run(self, scenario: Callable[[list["Worker"]], Awaitable[None]]) -> None:
        """Start all, and run `scenario`, which is given a worker of each host, to its end."""
        caller = Caller(self, scenario)
        processes: list[Service] = [*self.kvstores.values(), caller]
        for process in processes:
            process.start()
        try:
            while not caller.is_done:
                assert self.timeline.now_ns < ENDS_NS, "the scenario does not end"
                self.timeline.run_until(self.timeline.now_ns + SECOND, EVENTS_MAX)
        finally:
            for process in processes:
                process.dispose()

    def located(self) -> dict[HostId, int]:
        """Leading blocks of the session by host, as Redis has them."""
        lives = decode_lives(self.redis.hash_of(KV_HOSTS_KEY))
        return decode_locations(self.redis.hash_of(location_redis_key(OWNER)), lives)


class Caller(Service):
    """The process that workers' calls come from."""

    kind = "worker"

    def __init__(self, hosts: Hosts, scenario: Callable[[list["Worker"]], Awaitable[None]]) -> None:
        super().__init__(hosts.deployment, "worker", hosts.store)
        self._hosts = hosts
        self._scenario = scenario
        self.is_done = False

    def config(self) -> ServiceConfig:
        return ServiceConfig(instance="worker")

    async def main(self, runtime: Runtime, config: ServiceConfig) -> None:
        del config
        workers = [Worker(runtime.bus, self, kvstore) for kvstore in self._hosts.kvstores.values()]
        for worker in workers:
            await worker.open()
        await self._scenario(workers)
        self.is_done = True
        await runtime.stopping.wait()


class Worker:
    """Calls one kvstore, and has its arena mapped."""

    def __init__(self, bus: Any, process: Service, kvstore: Kvstore) -> None:
        self._bus = bus
        self._process = process
        self.kvstore = kvstore
        self._host_id = kvstore.host_id
        self._me: dict[str, Any] = {"worker_id": W1, "incarnation": f"i-{kvstore.host_id}"}
        self._arena: SimArena
        self.lease_path: Path

    async def ask(self, subject: Any, message: object) -> Any:
        return await self._bus.request(subject, message, self._host_id)

    async def open(self) -> None:
        """As soon as the kvstore is there."""
        message = m.KvOpen(
            **self._me, fingerprint="model", num_layers=LAYERS, page_bytes=PAGE_BYTES
        )
        kvstore = self.kvstore
        await until(lambda: kvstore.runtime is not None and kvstore.runtime.state == "ready")
        opened = await self.ask(subjects.KV_OPEN, message)
        self._arena = kvstore.attach(Path(opened.arena_path))
        self.lease_path = Path(opened.lease_path)

    async def gather(self, subject: Any, message: object) -> list[Any]:
        """What all hosts answer."""
        replies: list[Any] = await self._bus.gather(subject, message, timeout_s=1.0)
        return replies

    def lock(self) -> None:
        """Lock the lease file as long as this process lives."""
        self.kvstore.lock(self.lease_path, self._process)

    async def lease(self, num_pages: int) -> list[int]:
        message = m.KvLease(**self._me, page_bytes=PAGE_BYTES, num_pages=num_pages)
        return unpack_ints((await self.ask(subjects.KV_LEASE, message)).pages)

    async def lease_for_ever(self) -> None:
        """Page after page, until it is refused."""
        while True:
            await self.lease(1)

    async def commit(self) -> None:
        """Compute the sequence, and commit it."""
        pages = await self.lease(LAYERS * len(KEYS))
        blocks = [self._computed(at, pages[at * LAYERS :][:LAYERS]) for at in range(len(KEYS))]
        message = m.KvCommit(**self._me, fingerprint="model", page_bytes=PAGE_BYTES, blocks=blocks)
        assert (await self.ask(subjects.KV_COMMIT, message)).num_blocks == len(KEYS)

    async def store(self) -> None:
        """Commit, and wait until it is on disk."""
        await self.commit()
        await until(lambda: len(self.kvstore.disk.blocks) == len(KEYS))

    async def stage(self, kv_at: dict[HostId, int] | None = None) -> m.KvStaged:
        message = m.KvStage(
            **self._me, fingerprint="model", num_layers=LAYERS, page_bytes=PAGE_BYTES,
            keys=pack_keys(KEYS), session_id=SESSION, tenant=TENANT, kv_at=kv_at or {},
        )  # fmt: skip
        staged: m.KvStaged = await self.ask(subjects.KV_STAGE, message)
        return staged

    async def assert_arrives(self, staged: m.KvStaged) -> None:
        """Every staged page holds what was computed, in the end."""
        arena = self._arena
        pages, generations = unpack_ints(staged.pages), unpack_ints(staged.generations)
        await until(lambda: PageState.FILLING not in arena.promises(pages, generations))
        assert (arena.promises(pages, generations) == PageState.READY).all()
        for slot, page in enumerate(pages):
            layer, at = divmod(slot, staged.num_blocks)
            assert arena.content(page) == content(at, layer)

    def _computed(self, at: int, pages: list[int]) -> m.KvBlock:
        for layer, page in enumerate(pages):
            self._arena.put(page, content(at, layer))
        return m.KvBlock(
            key=KEYS[at].hex(),
            parent=(KEYS[at - 1] if at else root_key("model", TENANT)).hex(),
            tokens=pack_ints(TOKENS[at * BLOCK_TOKENS :][:BLOCK_TOKENS]),
            pages=pack_ints(pages),
            checksums=pack_ints([checksum(self._arena.pages[page].data) for page in pages], "Q"),
            owner=OWNER.hex(),
        )


def content(at: int, layer: int) -> Content:
    return layer, (KEYS[at],), ()


async def until(holds: Callable[[], bool]) -> None:
    """In simulated time, until the deployment's run ends."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def test_what_was_committed_is_found_after_a_restart_on_the_same_disk() -> None:
    hosts = Hosts()

    async def scenario(workers: list[Worker]) -> None:
        worker, kvstore = workers[0], workers[0].kvstore
        assert (await worker.stage()).num_blocks == 0
        await worker.store()
        staged = await worker.stage()
        assert (staged.num_blocks, staged.num_pages_loading) == (len(KEYS), 0)
        await worker.assert_arrives(staged)
        kvstore.terminate()
        await until(lambda: kvstore.life == 2)
        await worker.open()
        staged = await worker.stage()
        assert staged.num_blocks == len(KEYS) and staged.coming_from == "disk"
        assert staged.num_pages_loading == LAYERS * len(KEYS)
        await worker.assert_arrives(staged)
        await until(lambda: hosts.located() == {HostId("h0"): len(KEYS)})

    hosts.run(scenario)


@pytest.mark.parametrize("source", ["peer", "objects"])
def test_another_host_takes_it_from_where_it_is(source: str) -> None:
    is_peer = source == "peer"
    hosts = Hosts(has_bucket=not is_peer, has_peers=is_peer)
    kv_at = {HostId("h0") if is_peer else objects_of(HostId("h0")): len(KEYS)}

    async def scenario(workers: list[Worker]) -> None:
        first, second = workers
        await first.store()
        if hosts.bucket is not None:
            objects = hosts.bucket.objects
            await until(lambda: bool(objects))
        staged = await second.stage(kv_at)
        assert (staged.num_blocks, staged.coming_from) == (len(KEYS), source)
        await second.assert_arrives(staged)

    hosts.run(scenario)


def test_the_pages_of_a_worker_that_ended_come_back() -> None:
    hosts = Hosts()

    async def scenario(workers: list[Worker]) -> None:
        worker, core = workers[0], workers[0].kvstore.core
        worker.lock()
        await until(lambda: core.usage.arena_pages == NUM_PAGES)
        assert len(await worker.lease(NUM_PAGES)) == NUM_PAGES // 2, "others may come"
        await asyncio.sleep(5.0)
        assert core.usage.arena_pages_used == NUM_PAGES // 2, "it lives"
        worker.kvstore.release_lock(worker.lease_path)
        await until(lambda: core.usage.arena_pages_used == 0)
        with pytest.raises(NotFound, match="not open"):
            await worker.lease(1)

    hosts.run(scenario)


def test_deleted_blocks_are_gone_from_the_disk_when_that_is_answered() -> None:
    hosts = Hosts()

    async def scenario(workers: list[Worker]) -> None:
        worker = workers[0]
        await worker.store()
        message = m.KvDelete(session_id=SESSION, tenant=TENANT)
        replies = await worker.gather(subjects.SESSION_DELETE, message)
        assert [reply.num_blocks for reply in replies if reply.host_id == "h0"] == [len(KEYS)]
        assert not worker.kvstore.disk.blocks
        assert (await worker.stage()).num_blocks == 0

    hosts.run(scenario)


def test_a_kvstore_that_stops_writes_what_waits_and_answers_no_more() -> None:
    hosts = Hosts()

    async def scenario(workers: list[Worker]) -> None:
        worker, kvstore = workers[0], workers[0].kvstore
        await worker.commit()
        kvstore.terminate()
        with pytest.raises(SymphonyError):
            await worker.lease_for_ever()
        await until(lambda: kvstore.life == 2)
        assert len(kvstore.disk.blocks) == len(KEYS)

    hosts.run(scenario)
