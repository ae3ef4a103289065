"""The kvstore over real NATS, Redis and LMDB."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import pytest

from services.kvstore import service
from services.kvstore.core import KvCore, Limits, LoadOutcome
from services.kvstore.core.integrity import check_integrity
from services.kvstore.index import redis_index
from services.kvstore.leases import LeaseFiles
from services.kvstore.tiers.disk import ASIDE_NAME, Reader
from services.kvstore.tiers.memory import arenas, filling
from shared.arena import Arena, Bytes, PageState
from shared.blocks import BlockKey, pack_keys
from shared.errors import ConfigError, InvalidRequest, NotFound
from shared.ids import HostId, SessionId, WorkerId
from shared.locations import KV_HOSTS_KEY, location_redis_key
from shared.wire import messages as m
from shared.wire import subjects
from tests.conftest import Server
from tests.integration.harness import connected, eventually
from tests.integration.kvstore.cluster import (
    NUM_LAYERS,
    TENANT,
    FakeWorker,
    Place,
    flip_byte,
    kvstore,
    kvstore_process,
    locates,
    owner_of,
    redis_at,
    save_session,
    sequence,
    until,
)


@pytest.fixture
def place(nats_server: Server, redis_server: Server, tmp_path: Path) -> Place:
    return Place(nats_server, redis_server, tmp_path)


@asynccontextmanager
async def worker_at(place: Place, worker_id: str = "w1") -> AsyncIterator[FakeWorker]:
    async with connected(place.nats.url, worker_id) as bus:
        worker = FakeWorker(bus, worker_id)
        try:
            yield worker
        finally:
            worker.close()


async def num_written(redis: Any) -> int:
    """How often anything was sent of a host or a session."""
    calls = await redis.info("commandstats")
    return sum(calls.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("hset", "hdel"))


def test_committed_blocks_are_staged_from_the_arena_and_after_a_restart_from_disk(
    place: Place,
) -> None:
    async def scenario() -> None:
        async with worker_at(place) as worker, redis_at(place) as redis:
            async with kvstore(place):
                await worker.open()
                keys = await worker.store(4)
                staged = await worker.stage([*keys, BlockKey(bytes(16))])
                assert (staged.num_blocks, staged.num_pages_loading) == (4, 0)
                await worker.assert_holds(staged, keys)
                await until(locates(redis, 4))
            assert not place.config.arena_path.exists()
            num_before = await num_written(redis)
            async with kvstore(place):
                with pytest.raises(NotFound) as caught:
                    await worker.stage(keys)
                assert caught.value.code == "unknown_worker"
                await worker.open()
                staged = await worker.stage(keys)
                assert (staged.num_blocks, staged.num_pages_loading) == (4, 4 * NUM_LAYERS)
                await worker.assert_holds(staged, keys)
            assert await locates(redis, 4)()
            assert await num_written(redis) == num_before, "it said so in its first life"

    asyncio.run(scenario())


def test_a_killed_process_loses_nothing_that_was_on_disk(place: Place) -> None:
    async def scenario() -> None:
        async with worker_at(place) as worker:
            async with kvstore_process(place, worker.bus) as child:
                await worker.open()
                keys = await worker.store(3)
                child.kill()
                child.wait()
            assert place.config.arena_path.exists()
            async with kvstore_process(place, worker.bus) as child:
                await worker.open()
                staged = await worker.stage(keys)
                assert staged.num_blocks == 3
                await worker.assert_holds(staged, keys)
            assert child.returncode == 0
        assert not place.config.arena_path.exists()

    asyncio.run(scenario())


def test_a_flipped_byte_on_disk_is_found_and_its_block_deleted_everywhere(place: Place) -> None:
    async def scenario() -> None:
        async with worker_at(place) as worker, redis_at(place) as redis:
            async with kvstore(place):
                await worker.open()
                keys = await worker.store(3)
            flip_byte(place, keys[1], layer=2)
            async with kvstore(place):
                await worker.open()
                staged = await worker.stage(keys)
                arrived = await worker.arrived(staged)
                ready = [worker.arena.promise(*page) is PageState.READY for page in arrived]
                assert ready[2 * 3 + 1] is False and sum(ready) == 3 * NUM_LAYERS - 1
                await until(locates(redis, 1))
                stats = await worker.stats()
                assert (stats.num_corrupt, stats.disk_blocks) == (1, 2)
                await worker.release(staged.ticket)
                assert (await worker.stage(keys)).num_blocks == 1

    asyncio.run(scenario())


def test_an_arena_is_served_while_it_grows(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    may_grow = threading.Event()
    populate = Arena.populate

    def held(self: Arena, first: int, num_pages: int) -> None:
        assert first == 0 or may_grow.wait(30)
        populate(self, first, num_pages)

    monkeypatch.setattr(arenas, "FIRST_BYTES", 1)
    monkeypatch.setattr(filling, "CHUNK_BYTES", 1)
    monkeypatch.setattr(Arena, "populate", held)

    async def scenario() -> None:
        async with worker_at(place) as worker, kvstore(place):
            try:
                await worker.open()
                first = (await worker.stats()).arena_pages
                assert first == 2 * NUM_LAYERS < worker.arena.num_pages
                keys = await worker.store(1)
            finally:
                may_grow.set()

            async def is_whole() -> bool:
                return (await worker.stats()).arena_pages == worker.arena.num_pages

            await until(is_whole)
            assert len(await worker.lease(worker.arena.num_pages)) > first
            await worker.assert_holds(await worker.stage(keys), keys)

    asyncio.run(scenario())


def test_a_kvstore_that_has_lost_a_page_ends(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_and_check(core: KvCore) -> None:
        for arena in core.arenas.values():
            arena._free.pop()
        check_integrity(core)

    monkeypatch.setattr(service, "CHECK_EVERY_S", 0.01)
    monkeypatch.setattr(service, "check_integrity", lose_and_check)

    async def scenario() -> None:
        async with worker_at(place) as worker, kvstore(place) as runtime:
            await worker.open()
            await asyncio.wait_for(runtime.stopping.wait(), 15)

    with pytest.raises(AssertionError, match="kv-integrity") as caught:
        asyncio.run(scenario())
    assert "a page is lost" in str(caught.value.__cause__)


def test_a_truncated_database_begins_anew(place: Place) -> None:
    async def scenario() -> None:
        async with worker_at(place) as worker:
            async with kvstore(place):
                await worker.open()
                keys = await worker.store(3)
            os.truncate(place.database, place.database.stat().st_size // 2)
            async with kvstore(place):
                await worker.open()
                assert (await worker.stage(keys)).num_blocks == 0
                await worker.store(2)

    asyncio.run(scenario())


def test_a_database_found_damaged_while_running_begins_anew(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Reader.copy
    errors: list[lmdb.Error] = [lmdb.Error("Input/output error")]

    def failing(
        self: Reader, key: BlockKey, layer: int, out: Bytes, *, may_wait: bool = True
    ) -> LoadOutcome | None:
        if errors:
            raise errors.pop()
        return copy(self, key, layer, out, may_wait=may_wait)

    monkeypatch.setattr(Reader, "copy", failing)

    async def scenario() -> None:
        async with worker_at(place) as worker, redis_at(place) as redis:
            async with kvstore(place):
                await worker.open()
                keys = await worker.store(3)
            async with kvstore(place):
                await worker.open()
                await worker.arrived(await worker.stage(keys))
                assert (await worker.stats()).disk_blocks == 3  # it was one read that failed
                staged = await worker.stage(keys)
                await worker.assert_holds(staged, keys)
            async with kvstore(place):
                await worker.open()
                errors.append(lmdb.CorruptedError("made up"))
                await worker.arrived(await worker.stage(keys))
                await until(locates(redis, 0))
                assert (await worker.stats()).disk_blocks == 0
                await worker.store(2, seed=1)
                await until(locates(redis, 2, seed=1))
                assert (place.config.disk_path / ASIDE_NAME).exists()
            async with kvstore(place):
                assert (await worker.stats()).disk_blocks == 2

    asyncio.run(scenario())


def test_a_wiped_redis_is_filled_again_while_running(place: Place) -> None:
    async def scenario() -> None:
        async with worker_at(place) as worker, redis_at(place) as redis, kvstore(place):
            await worker.open()
            await worker.store(3)
            await until(locates(redis, 3))
            await redis.flushall()
            await until(locates(redis, 3))

    asyncio.run(scenario())


def test_a_redis_that_comes_back_with_an_old_snapshot_is_put_right(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_index, "CHECK_INTERVAL_S", 0.1)

    async def scenario() -> None:
        async with worker_at(place) as worker, redis_at(place) as redis, kvstore(place):
            await worker.open()
            keys = await worker.store(3)
            await until(locates(redis, 3))
            names = [KV_HOSTS_KEY, location_redis_key(owner_of(0))]
            snapshot = [await redis.dump(name) for name in names]
            await worker.store(2, seed=1)
            delete = m.KvDelete(session_id=SessionId("s"), keys=pack_keys(keys[1:]))
            await worker.bus.request(subjects.SESSION_DELETE, delete)
            await until(locates(redis, 1))
            await until(locates(redis, 2, seed=1))
            await redis.flushall()
            for name, dumped in zip(names, snapshot, strict=True):
                await redis.restore(name, 0, dumped)
            assert await locates(redis, 3)()
            await until(locates(redis, 1))
            await until(locates(redis, 2, seed=1))

    asyncio.run(scenario())


def test_a_key_of_another_kind_keeps_nothing_from_being_told(place: Place) -> None:
    async def scenario() -> None:
        async with worker_at(place) as worker, redis_at(place) as redis, kvstore(place):
            await redis.set(location_redis_key(owner_of(0)), b"nonsense")
            await worker.open()
            await worker.store(3)
            await worker.store(2, seed=1)
            await until(locates(redis, 2, seed=1))
            await until(locates(redis, 3))

    asyncio.run(scenario())


def test_what_redis_is_told_of_a_session_is_small_and_ends(place: Place) -> None:
    async def scenario() -> None:
        async with worker_at(place) as worker, redis_at(place) as redis, kvstore(place):
            await worker.open()
            await worker.store(3)
            await until(locates(redis, 3))
            key = location_redis_key(owner_of(0))
            assert await redis.memory_usage(key) <= 200
            expiry_s = place.config.expiry_s
            assert expiry_s < await redis.ttl(key) <= 1.1 * expiry_s

    asyncio.run(scenario())


def test_without_redis_everything_works_and_it_is_filled_later(place: Place) -> None:
    async def scenario() -> None:
        async with worker_at(place) as worker, redis_at(place) as redis, kvstore(place):
            await worker.open()
            place.redis.kill()
            keys = await worker.store(3)
            assert (await worker.stage(keys)).num_blocks == 3
            assert (await worker.stage(session_id=SessionId("s"))).num_blocks == 0
            delete = m.KvDelete(session_id=SessionId("s"), keys=pack_keys(keys[2:]))
            assert (await worker.bus.request(subjects.SESSION_DELETE, delete)).num_blocks == 1
            place.redis.start()
            await until(locates(redis, 2))

    asyncio.run(scenario())


def test_a_wiped_disk_is_struck_from_redis(place: Place) -> None:
    async def scenario() -> None:
        async with worker_at(place) as worker, redis_at(place) as redis:
            async with kvstore(place):
                await worker.open()
                await worker.store(3)
            assert await locates(redis, 3)()
            place.database.unlink()
            async with kvstore(place):
                await until(locates(redis, 0))

    asyncio.run(scenario())


def test_a_dead_worker_gives_back_its_leases_and_tickets(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[object] = []
    poll = LeaseFiles.poll

    def counted(leases: LeaseFiles) -> list[tuple[WorkerId, str]]:
        dead = poll(leases)
        polls.append(dead)
        return dead

    monkeypatch.setattr(LeaseFiles, "poll", counted)
    monkeypatch.setattr(service, "TICK_S", 0.05)
    monkeypatch.setattr(service, "Limits", partial(Limits, lease_share=2.0))  # one may have all

    async def scenario() -> None:
        async with worker_at(place) as alive, worker_at(place, "w2") as dying, kvstore(place):
            await alive.open()
            await dying.open()
            keys = await dying.store(2)
            await dying.stage(keys)
            leased = await dying.lease(dying.arena.num_pages)
            assert len(leased) == dying.arena.num_pages - 2 * NUM_LAYERS
            assert await alive.lease(1) == []

            num_polls = len(polls)
            await eventually(lambda: len(polls) >= num_polls + 2)  # the lock was seen held
            dying.close()

            async def is_reclaimed() -> bool:
                return (await alive.stats()).arena_pages_used == 2 * NUM_LAYERS

            await until(is_reclaimed)
            num_pages = alive.arena.num_pages
            assert len(await alive.lease(num_pages)) == num_pages  # evicted too

    asyncio.run(scenario())


def test_a_session_is_staged_by_its_record_and_deleted_in_every_tier(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.kvstore.index.session_count.INTERVAL_S", 0.01)
    monkeypatch.setattr("services.kvstore.index.session_count.REST_PER_WORK", 0)

    async def scenario() -> None:
        async with worker_at(place) as worker, redis_at(place) as redis:
            session = SessionId("s1")
            async with kvstore(place):
                await worker.open()
                keys = await worker.store(3)
                await save_session(redis, session, keys)
                staged = await worker.stage(session_id=session)
                assert staged.num_blocks == 3 and staged.keys == b"".join(keys).hex()

                async def is_counted() -> bool:
                    return (await worker.stats()).num_sessions == 1

                await until(is_counted)
                replies = await worker.bus.gather(
                    subjects.SESSION_DELETE,
                    m.KvDelete(session_id=session, tenant=TENANT, keys=pack_keys(keys)),
                    timeout_s=5,
                    num_max=1,
                )
                assert replies == [m.KvDeleted(host_id=HostId("h1"), num_blocks=3)]
                assert (await worker.stage(keys)).num_blocks == 0
                await worker.assert_holds(staged, keys)  # a reader's pages stay until it lets go
                await worker.release(staged.ticket)

                async def is_empty() -> bool:
                    return (await worker.stats()).arena_pages_used == 0

                await until(is_empty)
                await until(locates(redis, 0))
            async with kvstore(place):
                assert (await worker.stats()).disk_blocks == 0

    asyncio.run(scenario())


def test_wrong_commits_are_refused(place: Place) -> None:
    async def scenario() -> None:
        async with worker_at(place) as worker, kvstore(place):
            await worker.open()
            tokens, keys = sequence(1)
            pages = await worker.lease(NUM_LAYERS)
            with pytest.raises(InvalidRequest, match="not leased"):
                await worker.commit(tokens, keys, [page + NUM_LAYERS for page in pages])
            with pytest.raises(InvalidRequest, match="3 pages"):
                await worker.commit(tokens, keys, pages[:2])
            with pytest.raises(InvalidRequest, match="key is not that"):
                await worker.commit([0] * len(tokens), keys, pages)
            assert await worker.commit(tokens, keys, pages) == 1

    asyncio.run(scenario())


def test_a_second_kvstore_on_the_same_folders_does_not_start(place: Place) -> None:
    async def scenario() -> None:
        async with kvstore(place):
            with pytest.raises(ConfigError, match=r"SYMPHONY_ARENA_DIR.*another kvstore"):
                async with kvstore(place):
                    pass

    asyncio.run(scenario())
