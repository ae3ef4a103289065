"""What sessions take in Redis is counted at what Redis takes of memory for them, or more."""

import asyncio
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from redis.asyncio import Redis

from services.frontend.core.limits.quotas import TenantLimits
from services.frontend.core.sessions.stored_responses import StoredResponse, new_response_id
from services.frontend.sessions.redis import redis_at
from services.frontend.sessions.redis_scripts import DELETION_SLOTS
from services.frontend.sessions.response_store import ResponseStore
from services.frontend.sessions.store import SessionStore
from shared.ids import SessionId, TenantId
from shared.runtime.clock import SystemClock
from tests.conftest import Server
from tests.integration.frontend.sessions.test_session_store import record

A, B = TenantId("a"), TenantId("b")
FOXES = "\U0001f98a" * 240
NO_LIMITS = TenantLimits()
JUST_GROWN = 132  # its tables were made twice as large a moment before, and the old ones are there


@pytest.fixture
def store(redis_server: Server) -> SessionStore:
    return SessionStore(redis_at(redis_server.url), SystemClock(), 3600)


async def used_by_data(redis: Any) -> int:
    info = await redis.info("memory")
    return int(info["used_memory"] - info["mem_clients_normal"] - info["mem_aof_buffer"])


async def save(store: SessionStore, tenant: TenantId, name: str, num_chars: int) -> None:
    kept = replace(record(name), tenant=tenant, tokens="t" * num_chars)
    await store.put(kept, (await store.get(tenant, SessionId(name))).epoch, NO_LIMITS)


async def say(store: SessionStore, tenant: TenantId, name: str, num_chars: int) -> None:
    session_id = SessionId(name)
    response = {"id": new_response_id(session_id), "previous_response_id": None}
    stored = StoredResponse(response, [{"text": "t" * num_chars}], [])
    await ResponseStore(store).put(tenant, session_id, " 0 0", stored, NO_LIMITS)


def test_what_is_counted_is_not_less_than_what_is_used(
    redis_server: Server, store: SessionStore
) -> None:
    kinds = ("records", "responses", "notes", "tombstones", "tenants")

    async def scenario() -> None:
        redis: Any = Redis.from_url(redis_server.url)
        await fill(store, "notes", "warm", 0)  # it learns the scripts
        for what, (name, num_chars) in product(kinds, [(FOXES, 0), ("", 3000)]):
            await redis.flushall()
            before = await used_by_data(redis)
            await fill(store, what, name, num_chars)
            used = await used_by_data(redis) - before
            counted = float(await redis.zscore("symphony:tenants", ""))
            assert used <= counted <= 2 * used + 700 * JUST_GROWN, (what, name, num_chars)
        await redis.aclose()
        await store.close()

    asyncio.run(scenario())


async def fill(store: SessionStore, what: str, name: str, num_chars: int) -> None:
    """Many of a kind."""
    for at in range(JUST_GROWN):
        each = f"{name}{at}"
        tenant = TenantId(f"t{at}") if what == "tenants" else A
        keep = say if what == "responses" else save
        await keep(store, tenant, each, num_chars)
        if what in ("notes", "tombstones"):
            tombstone = await store.forget(tenant, SessionId(each))
            if what == "notes":
                await store.settle(tombstone)


def test_deleting_what_is_not_there_leaves_nothing(
    redis_server: Server, store: SessionStore
) -> None:
    async def scenario() -> None:
        redis: Any = Redis.from_url(redis_server.url)
        await save(store, A, "fox", 100)
        await say(store, A, "fox", 100)
        turns = {at: await store.get(B, SessionId(f"{FOXES}{at}")) for at in range(3)}
        num_keys = await redis.dbsize()
        for at in range(300):
            assert not (await store.forget(B, SessionId(f"{FOXES}{at}"))).found
        assert await redis.dbsize() == num_keys + 2
        assert await redis.strlen("symphony:deletions:1:b") <= 4 * DELETION_SLOTS
        for at, known in turns.items():  # that ran meanwhile
            kept = replace(record(f"{FOXES}{at}"), tenant=B)
            await store.put(kept, known.epoch, NO_LIMITS)
            assert await store.read(B, kept.session_id) is None
        await save(store, B, f"{FOXES}1", 0)
        assert await store.read(B, SessionId(f"{FOXES}1")) is not None, "it began afterwards"
        assert await store.read(A, SessionId("fox")) is not None
        await redis.aclose()
        await store.close()

    asyncio.run(scenario())


def test_tenants_of_any_number_share_one_table_of_deletions(
    redis_server: Server, store: SessionStore
) -> None:
    async def scenario() -> None:
        redis: Any = Redis.from_url(redis_server.url)
        await redis.config_set("maxmemory", 4 * 1024**2)
        running = await store.get(TenantId("t99"), SessionId("fox"))
        for at in range(100):
            await store.forget(TenantId(f"t{at}"), SessionId("fox"))
        tables = [key async for key in redis.scan_iter("symphony:deletions:*")]
        assert len(tables) < 20 and b"symphony:deletions:0:" in tables
        late = replace(record("fox"), tenant=TenantId("t99"))
        await store.put(late, running.epoch, NO_LIMITS)
        assert await store.read(late.tenant, SessionId("fox")) is None
        await redis.aclose()
        await store.close()

    asyncio.run(scenario())
