"""What a tenant's sessions take of Redis: its own leave when they are too many, nobody else's."""

import asyncio
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from services.frontend import redis_scripts, sessions
from services.frontend.core.quotas import TenantLimits
from services.frontend.sessions import SessionStore
from shared.clock import SystemClock
from shared.ids import SessionId, TenantId
from shared.sessions import (
    encode_record,
    session_index_redis_key,
    session_redis_key,
    session_sizes_redis_key,
)
from tests.conftest import Server
from tests.integration.frontend.test_session_store import record

A, B = TenantId("a"), TenantId("b:a")
NAMES = ("fox", "crow", "a:b", "sum", "owl")


class Store(SessionStore):
    """A store that knows what is in Redis."""

    def __init__(self, url: str, expiry_s: int = 60) -> None:
        super().__init__(url, SystemClock(), expiry_s)
        self.redis: Any = Redis.from_url(url)
        self._num_turns = count(1000)  # as many digits in each

    async def keep(
        self, name: str, limits: TenantLimits, tenant: TenantId = A, num_tokens: int = 0
    ) -> int:
        """Put a record; answers its size."""
        num_turns = next(self._num_turns)
        kept = replace(record(name), tenant=tenant, tokens="t" * num_tokens, num_turns=num_turns)
        await self.put(kept, "", limits)
        return len(encode_record(kept))

    async def kept(self, tenant: TenantId = A) -> dict[str, int]:
        """Sizes of the tenant's records, the next to leave first; Redis counts the same."""
        sizes = await self.redis.hgetall(session_sizes_redis_key(tenant))
        names = await self.redis.zrange(session_index_redis_key(tenant), 0, -1)
        total = int(sizes.pop(b"", 0))
        found = {
            name.decode(): await self.redis.strlen(
                session_redis_key(tenant, SessionId(name.decode()))
            )
            for name in names
        }
        assert sizes == {name.encode(): b"%d" % size for name, size in found.items()}
        assert total == sum(found.values()) and all(found.values())
        records = [key async for key in self.redis.scan_iter(session_redis_key(tenant, ALL))]
        assert len(records) == len(found), "every record counts"
        return found

    async def close(self) -> None:
        await self.redis.aclose()
        await super().close()


ALL = SessionId("*")


def run(redis_server: Server, scenario: Any, expiry_s: int = 60) -> None:
    async def whole() -> None:
        store = Store(redis_server.url, expiry_s)
        await store.redis.flushall()
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(whole())


def test_the_least_recently_used_leave_and_nobody_elses(redis_server: Server) -> None:
    async def scenario(store: Store) -> None:
        limits = TenantLimits(sessions=2)
        await store.keep("old", TenantLimits(), B)
        for name in ("fox", "crow", "fox", "owl"):
            await store.keep(name, limits)
        assert list(await store.kept()) == ["fox", "owl"]
        assert await store.read(A, SessionId("crow")) is None
        assert list(await store.kept(B)) == ["old"]
        await store.forget(A, SessionId("fox"))
        assert list(await store.kept()) == ["owl"]
        await store.forget(B, SessionId("owl"))
        assert list(await store.kept()) == ["owl"] and list(await store.kept(B)) == ["old"]

    run(redis_server, scenario)


def test_bytes_count_and_what_never_fits_is_not_kept(redis_server: Server) -> None:
    async def scenario(store: Store) -> None:
        size = await store.keep("fox", TenantLimits())
        limits = TenantLimits(session_bytes=3 * size + 10)
        await store.keep("crow", limits, num_tokens=len("fox"))
        await store.keep("owl", limits)
        assert list(await store.kept()) == ["fox", "crow", "owl"]
        await store.keep("owl", limits, num_tokens=size)
        assert list(await store.kept()) == ["crow", "owl"]
        await store.keep("owl", limits, num_tokens=4 * size)
        assert list(await store.kept()) == ["crow"], "a record too large costs no other its place"

    run(redis_server, scenario)


def test_what_expired_or_was_thrown_away_is_forgotten(redis_server: Server) -> None:
    async def scenario(store: Store) -> None:
        index, sizes = session_index_redis_key(A), session_sizes_redis_key(A)
        for name in NAMES:
            await store.keep(name, TenantLimits())
        assert 0 < await store.redis.ttl(index) <= 60 and 0 < await store.redis.ttl(sizes) <= 60
        for name in NAMES[:3]:  # as if a minute had passed
            await store.redis.zadd(index, {name: 1.0})
            await store.redis.delete(session_redis_key(A, SessionId(name)))
        await store.keep("new", TenantLimits())
        assert list(await store.kept()) == ["sum", "owl", "new"]

        await store.redis.delete(index)
        await store.keep("new", TenantLimits(session_bytes=2000))
        assert await store.redis.hlen(sizes) == 2, "sizes of nobody do not count"
        await store.redis.delete(sizes)
        await store.keep("newer", TenantLimits(sessions=2))
        await store.keep("newest", TenantLimits(sessions=2))
        assert [n.decode() for n in await store.redis.zrange(index, 0, -1)] == ["newer", "newest"]

    run(redis_server, scenario)


def test_a_step_ends(redis_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    few = redis_scripts.PUT.replace(f"1, {redis_scripts.LEAVING_MAX} do", "1, 3 do")
    assert few != redis_scripts.PUT
    monkeypatch.setattr(sessions, "PUT", few)

    async def scenario(store: Store) -> None:
        for at in range(10):
            await store.keep(f"s{at}", TenantLimits())
        limits, seen = TenantLimits(sessions=2), []
        for _ in range(3):
            await store.keep("new", limits)
            seen.append(len(await store.kept()))
        assert seen == [7, 4, 2]
        assert list(await store.kept()) == ["s9", "new"]

    run(redis_server, scenario)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.sampled_from([A, B]), st.sampled_from(NAMES), st.integers(-1, 400)),
        max_size=25,
    )
)
def test_no_limit_is_passed(redis_server: Server, steps: list[tuple[TenantId, str, int]]) -> None:
    limits = {A: TenantLimits(sessions=3, session_bytes=1500), B: TenantLimits(session_bytes=900)}

    async def scenario(store: Store) -> None:
        model: dict[TenantId, dict[str, int]] = {A: {}, B: {}}
        for tenant, name, num_tokens in steps:
            mine, limit = model[tenant], limits[tenant]
            mine.pop(name, None)
            if num_tokens < 0:
                await store.forget(tenant, SessionId(name))
                await store.redis.delete(f"symphony:generation:{len(tenant)}:{tenant}:{name}")
            else:
                size = await store.keep(name, limit, tenant, num_tokens)
                if size <= limit.session_bytes:
                    while mine and (
                        sum(mine.values()) + size > limit.session_bytes
                        or 0 < limit.sessions <= len(mine)
                    ):
                        del mine[next(iter(mine))]
                    mine[name] = size
            for each in (A, B):
                assert list((await store.kept(each)).items()) == list(model[each].items())

    run(redis_server, scenario)
