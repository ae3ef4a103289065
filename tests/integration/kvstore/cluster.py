"""A kvstore to test, and a worker that talks to it."""

import asyncio
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from redis.asyncio import Redis

from cli.base.children import start_child, stop_child
from services.kvstore.config import KvstoreConfig
from services.kvstore.service import main
from shared.arena import Arena, Bytes, PageState, checksum
from shared.blocks import BLOCK_TOKENS, BlockKey, chain_keys, pack_keys, root_key
from shared.bus import Bus
from shared.ids import HostId, ModelId, SessionId, TenantId, WorkerId, new_id
from shared.locations import KV_HOSTS_KEY, decode_lives, decode_locations, location_redis_key
from shared.owners import NO_OWNER, OwnerKey, owner_key
from shared.wire import messages as m
from shared.wire import subjects
from shared.wire.messages.codec import pack_ints, unpack_ints
from shared.wire.sessions import SessionRecord, TextMark, encode_record, session_redis_key
from tests.conftest import Server
from tests.integration.harness import InProcessRuntime, eventually, running

FINGERPRINT = "model-a"
NUM_LAYERS = 3
PAGE_BYTES = 8192
ARENA_BYTES = 64 * NUM_LAYERS * PAGE_BYTES
TENANT = TenantId("t")
NOTHING = TextMark.of("")
H1 = HostId("h1")


@dataclass
class Place:
    """Where a kvstore finds everything, life after life."""

    nats: Server
    redis: Server
    directory: Path
    settings: dict[str, Any] = field(default_factory=dict)
    host_id: HostId = H1

    @property
    def config(self) -> KvstoreConfig:
        return KvstoreConfig(
            nats_url=self.nats.url,
            redis_url=self.redis.url,
            host_id=self.host_id,
            data_dir=self.directory / "data",
            arena_dir=self.directory / "arena",
            **{"arena_bytes": ARENA_BYTES, "disk_bytes_max": 64 * 1024**2, **self.settings},
        )

    @property
    def env(self) -> dict[str, str]:
        """The same settings for a process of its own."""
        config = self.config
        return {
            **os.environ,
            "SYMPHONY_NATS_URL": config.nats_url,
            "SYMPHONY_REDIS_URL": config.redis_url,
            "SYMPHONY_HOST_ID": config.host_id,
            "SYMPHONY_DATA_DIR": str(config.data_dir),
            "SYMPHONY_ARENA_DIR": str(config.arena_path),
            "SYMPHONY_ARENA_BYTES": str(config.arena_bytes),
            "SYMPHONY_DISK_BYTES_MAX": str(config.disk_bytes_max),
        }

    @property
    def database(self) -> Path:
        return self.config.disk_path / "data.mdb"


def kvstore(place: Place) -> AbstractAsyncContextManager[InProcessRuntime]:
    """One life of a kvstore, in this process."""
    return running(main, place.config, "kvstore")


@asynccontextmanager
async def kvstore_process(place: Place, bus: Bus) -> AsyncIterator[subprocess.Popen[bytes]]:
    """One life of a kvstore as a process of its own."""
    log_path = place.directory / "kvstore.log"
    command = [sys.executable, "-m", "services.kvstore"]
    child = start_child(command, log_path=log_path, env=place.env)

    async def answers() -> bool:
        assert child.poll() is None, log_path.read_text()
        return await bus.has_responder(subjects.KV_STATS, m.Empty())

    try:
        await until(answers)
        yield child
    finally:
        stop_child(child)


async def until(holds: Callable[[], Awaitable[bool]], timeout_s: float = 15.0) -> None:
    """Wait until ``await holds()``."""
    deadline = time.monotonic() + timeout_s
    while not await holds():
        assert time.monotonic() < deadline, "the awaited event never came"
        await asyncio.sleep(0.01)


def sequence(num_blocks: int, seed: int = 0) -> tuple[list[int], list[BlockKey]]:
    """Tokens of whole blocks, and their keys."""
    rng = np.random.default_rng(seed)
    tokens: list[int] = rng.integers(0, 1000, num_blocks * BLOCK_TOKENS).tolist()
    return tokens, chain_keys(root_key(FINGERPRINT, TENANT), tokens)


def owner_of(seed: int) -> OwnerKey:
    """The session that `FakeWorker.store` stores a sequence of."""
    return owner_key(TENANT, SessionId(f"of-{seed}"))


def page_of(key: BlockKey, layer: int) -> Bytes:
    """The bytes that the fake worker computes for a layer of a block."""
    seed = int.from_bytes(key, "little") + layer
    return np.random.default_rng(seed).integers(0, 256, PAGE_BYTES, np.uint8)


def flip_byte(place: Place, key: BlockKey, layer: int) -> None:
    """Damage one stored page in its slab."""
    (slab,) = place.database.parent.glob("*.slab")
    data = bytearray(slab.read_bytes())
    at = data.index(page_of(key, layer).tobytes())
    data[at + 100] ^= 1
    slab.write_bytes(data)


@asynccontextmanager
async def redis_at(place: Place) -> AsyncIterator[Any]:
    """A client of the deployment's Redis."""
    redis: Any = Redis.from_url(place.redis.url)
    try:
        yield redis
    finally:
        await redis.aclose()


def locates(redis: Any, num_blocks: int, seed: int = 0) -> Callable[[], Awaitable[bool]]:
    """Whether Redis says that the host has so many blocks of the session."""

    async def is_so() -> bool:
        lives = decode_lives(await redis.hgetall(KV_HOSTS_KEY))
        fields = await redis.hgetall(location_redis_key(owner_of(seed)))
        return decode_locations(fields, lives) == ({"h1": num_blocks} if num_blocks else {})

    return is_so


async def save_session(redis: Any, session_id: SessionId, keys: Sequence[BlockKey]) -> None:
    """What the frontend writes when a turn ends."""
    record = SessionRecord(
        session_id=session_id, tenant=TENANT, model_id=ModelId("m"), fingerprint=FINGERPRINT,
        tokens="", block_keys=pack_keys(keys),
        prompt=NOTHING, reply=NOTHING, stripped_reply=NOTHING,
        num_tokens=0, num_turns=1, last_used=0.0, expires=0.0,
    )  # fmt: skip
    await redis.set(session_redis_key(TENANT, session_id), encode_record(record))


class FakeWorker:
    """Computes blocks, commits them, stages them again."""

    def __init__(self, bus: Bus, worker_id: str = "w1", host_id: str = "h1") -> None:
        self.bus = bus
        self.host_id = HostId(host_id)
        self.worker_id = WorkerId(worker_id)
        self.incarnation = new_id("i")
        self._lock: int | None = None

    async def open(self) -> m.KvOpened:
        """As a new incarnation each time, which gives back what the old one held."""
        self.incarnation = new_id("i")
        self.opened = await self.bus.request(
            subjects.KV_OPEN,
            m.KvOpen(
                worker_id=self.worker_id, incarnation=self.incarnation, fingerprint=FINGERPRINT,
                num_layers=NUM_LAYERS, page_bytes=PAGE_BYTES,
            ),
            self.host_id,
        )  # fmt: skip
        self.close()
        self.arena = Arena.attach(Path(self.opened.arena_path))
        self._lock = os.open(self.opened.lease_path, os.O_RDWR)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self.opened

    def close(self) -> None:
        """Die, as far as the kvstore can tell."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            self.arena.close()

    async def lease(self, num_pages: int) -> list[int]:
        message = m.KvLease(
            worker_id=self.worker_id, incarnation=self.incarnation, page_bytes=PAGE_BYTES,
            num_pages=num_pages,
        )  # fmt: skip
        return unpack_ints((await self.bus.request(subjects.KV_LEASE, message, self.host_id)).pages)

    async def commit(
        self,
        tokens: Sequence[int],
        keys: Sequence[BlockKey],
        pages: Sequence[int],
        owner: OwnerKey = NO_OWNER,
        parent: BlockKey | None = None,
        expiry_s: int = 0,
    ) -> int:
        """Compute blocks into leased pages and commit them; those from the beginning, or those
        after `parent`. Their session's KV is kept for `expiry_s`; 0: as the disk has it.
        """
        blocks = []
        parents = [root_key(FINGERPRINT, TENANT) if parent is None else parent, *keys]
        for index, key in enumerate(keys):
            own = list(pages[index * NUM_LAYERS : (index + 1) * NUM_LAYERS])
            for layer, page in enumerate(own):
                self.arena.pages[page] = page_of(key, layer)
            blocks.append(
                m.KvBlock(
                    key=key.hex(),
                    parent=parents[index].hex(),
                    tokens=pack_ints(tokens[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]),
                    pages=pack_ints(own),
                    checksums=pack_ints([checksum(self.arena.pages[p].data) for p in own], "Q"),
                    owner=owner.hex(),
                    expiry_s=expiry_s,
                )
            )
        message = m.KvCommit(
            worker_id=self.worker_id, incarnation=self.incarnation, fingerprint=FINGERPRINT,
            page_bytes=PAGE_BYTES, blocks=blocks,
        )  # fmt: skip
        return (await self.bus.request(subjects.KV_COMMIT, message, self.host_id)).num_blocks

    async def locate(self, keys: Sequence[BlockKey]) -> int:
        """How many of these, from the first on, its host would give another one."""
        message = m.KvLocate(keys=pack_keys(keys), num_layers=NUM_LAYERS, page_bytes=PAGE_BYTES)
        return (await self.bus.request(subjects.KV_LOCATE, message, self.host_id)).num_blocks

    async def store(self, num_blocks: int, seed: int = 0) -> list[BlockKey]:
        """Compute and commit a sequence of `owner_of(seed)`, and wait until it is on disk."""
        tokens, keys = sequence(num_blocks, seed)
        before = (await self.stats()).disk_blocks
        pages = await self.lease(num_blocks * NUM_LAYERS)
        assert await self.commit(tokens, keys, pages, owner_of(seed)) > 0

        async def is_stored() -> bool:
            return (await self.stats()).disk_blocks == before + num_blocks

        await until(is_stored)
        return keys

    async def stage(
        self,
        keys: Sequence[BlockKey] = (),
        session_id: SessionId | None = None,
        kv_at: dict[HostId, int] | None = None,
        num_before: int = 0,
    ) -> m.KvStaged:
        message = m.KvStage(
            worker_id=self.worker_id, incarnation=self.incarnation, fingerprint=FINGERPRINT,
            num_layers=NUM_LAYERS, page_bytes=PAGE_BYTES, keys=pack_keys(keys),
            session_id=session_id, tenant=TENANT, kv_at=kv_at or {}, num_before=num_before,
        )  # fmt: skip
        return await self.bus.request(subjects.KV_STAGE, message, self.host_id)

    async def release(self, ticket: int) -> None:
        message = m.KvRelease(worker_id=self.worker_id, incarnation=self.incarnation, ticket=ticket)
        await self.bus.publish(subjects.KV_RELEASE, message, self.host_id)

    async def stats(self) -> m.KvStats:
        """Of its own host's kvstore."""
        found: list[m.KvStats] = []

        def is_there(replies: list[m.KvStats]) -> bool:
            found[:] = [reply for reply in replies if reply.host_id == self.host_id]
            return bool(found)

        await self.bus.gather(subjects.KV_STATS, m.Empty(), timeout_s=5.0, until=is_there)
        return found[0]

    async def assert_holds(self, staged: m.KvStaged, keys: Sequence[BlockKey]) -> None:
        """Every staged page comes, and holds what was computed."""
        for slot, (page, generation) in enumerate(await self.arrived(staged)):
            assert self.arena.promise(page, generation) is PageState.READY
            layer, index = divmod(slot, staged.num_blocks)
            assert np.array_equal(self.arena.pages[page], page_of(keys[index], layer))

    async def arrived(self, staged: m.KvStaged) -> list[tuple[int, int]]:
        """Page and generation of every staged page, once none of them is pending."""
        pages, generations = unpack_ints(staged.pages), unpack_ints(staged.generations)
        assert len(pages) == NUM_LAYERS * staged.num_blocks
        promised = list(zip(pages, generations, strict=True))
        await eventually(
            lambda: PageState.FILLING not in {self.arena.promise(*page) for page in promised}
        )
        return promised
