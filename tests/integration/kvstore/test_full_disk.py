"""A kvstore whose disk fills while it serves: what is old leaves, and everybody is answered."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from services.kvstore import service
from services.kvstore.core import Limits
from services.kvstore.tiers.disk import slabs, stored_bytes
from services.kvstore.tiers.disk.slab import slot_bytes
from shared.blocks import BlockKey
from shared.runtime.clock import SystemClock
from shared.wire import messages as m
from shared.wire import subjects
from shared.wire.messages.codec import pack_ints
from tests.conftest import Server
from tests.integration.harness import connected
from tests.integration.kvstore.cluster import (
    NUM_LAYERS,
    PAGE_BYTES,
    FakeWorker,
    Place,
    kvstore,
    locates,
    owner_of,
    redis_at,
    sequence,
    until,
)

NUM_BLOCKS = 2  # of each session
SECOND_NS = 1_000_000_000


@pytest.fixture
def place(nats_server: Server, redis_server: Server, tmp_path: Path) -> Place:
    (tmp_path / "secret").write_text("s" * 32)  # so that it serves others
    return Place(nats_server, redis_server, tmp_path, {"peer_secret_file": tmp_path / "secret"})


@asynccontextmanager
async def worker_at(place: Place) -> AsyncIterator[FakeWorker]:
    async with connected(place.nats.url, "worker") as bus, kvstore(place):
        worker = FakeWorker(bus)
        await worker.open()
        try:
            yield worker
        finally:
            worker.close()


async def leave(worker: FakeWorker, seed: int, expiry_s: int = 0) -> list[BlockKey]:
    """A turn's KV comes, and is taken."""
    tokens, keys = sequence(NUM_BLOCKS, seed)
    pages = await worker.lease(NUM_BLOCKS * NUM_LAYERS)
    num_taken = await worker.commit(tokens, keys, pages, owner_of(seed), expiry_s=expiry_s)
    assert num_taken == NUM_BLOCKS
    return keys


async def stored(worker: FakeWorker, num_sessions: int) -> None:
    async def are_stored() -> bool:
        return (await worker.stats()).disk_blocks == num_sessions * NUM_BLOCKS

    await until(are_stored)


async def left(worker: FakeWorker, keys: list[BlockKey]) -> None:
    """Once nothing of this session is to be had any more."""

    async def are_gone() -> bool:
        return await worker.locate(keys) == 0

    await until(are_gone)


async def empty_memory(worker: FakeWorker) -> None:
    """Everything that may leaves the arena."""
    stats = await worker.stats()
    pages = await worker.lease(stats.arena_pages)
    message = m.KvRelease(
        worker_id=worker.worker_id, incarnation=worker.incarnation, page_bytes=PAGE_BYTES,
        pages=pack_ints(pages),
    )  # fmt: skip
    await worker.bus.publish(subjects.KV_RELEASE, message, worker.host_id)


def test_what_is_expired_leaves_first_and_then_what_was_used_least_lately(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_s = [0]
    now_ns = SystemClock.now_ns
    monkeypatch.setattr(SystemClock, "now_ns", lambda clock: now_ns(clock) + ahead_s[0] * SECOND_NS)
    monkeypatch.setattr(service, "TICK_S", 3600.0)  # it is not that which makes room
    monkeypatch.setattr(service, "Limits", partial(Limits, lease_share=1.0))  # to empty memory
    place.settings["disk_bytes_max"] = 4 * NUM_BLOCKS * stored_bytes(NUM_LAYERS, PAGE_BYTES)

    async def scenario() -> None:
        async with worker_at(place) as worker:
            keys = []
            for seed, expiry_s in enumerate((0, 60, 0, 0)):
                keys.append(await leave(worker, seed, expiry_s))
                await stored(worker, seed + 1)
            ahead_s[0] = 120
            staged = await worker.stage(keys[3])
            keys.append(await leave(worker, 4))
            await left(worker, keys[1])
            assert [await worker.locate(each) for each in keys] == [2, 0, 2, 2, 2]
            await worker.assert_holds(staged, keys[3])
            keys.append(await leave(worker, 5))
            await stored(worker, 4)
            assert [await worker.locate(each) for each in keys] == [2, 0, 2, 2, 2, 2]
            await empty_memory(worker)
            await left(worker, keys[0])
            assert [await worker.locate(each) for each in keys] == [0, 0, 2, 2, 2, 2]
            await worker.assert_holds(await worker.stage(keys[2]), keys[2])

    asyncio.run(scenario())


def test_while_nothing_can_leave_a_full_disk_new_kv_stays_in_memory_where_others_find_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system has room for two sessions, and workers hold both."""
    fallocate, is_full = os.posix_fallocate, [False]

    def allocate(file: int, start: int, num_bytes: int) -> None:
        if is_full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        fallocate(file, start, num_bytes)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    growth_bytes = 2 * NUM_BLOCKS * slot_bytes(NUM_LAYERS, PAGE_BYTES)
    monkeypatch.setattr(slabs, "GROWTH_BYTES_MAX", growth_bytes)

    async def scenario() -> None:
        async with redis_at(place) as redis, worker_at(place) as worker:
            keys = [await leave(worker, seed) for seed in (0, 1)]
            await stored(worker, 2)
            is_full[0] = True
            assert [(await worker.stage(each)).num_blocks for each in keys] == [2, 2]
            keys.append(await leave(worker, 2))

            await until(locates(redis, NUM_BLOCKS, seed=2))
            assert [await worker.locate(each) for each in keys] == [NUM_BLOCKS] * 3
            assert (await worker.stats()).disk_blocks == 2 * NUM_BLOCKS
            for each in keys:
                await worker.assert_holds(await worker.stage(each), each)
        is_full[0] = False
        async with redis_at(place) as redis, worker_at(place) as worker:
            await until(locates(redis, 0, seed=2))
            await until(locates(redis, NUM_BLOCKS, seed=0))
            assert [await worker.locate(each) for each in keys] == [NUM_BLOCKS, NUM_BLOCKS, 0]

    asyncio.run(scenario())
