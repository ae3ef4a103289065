"""What a tenant's sessions take of Redis: its own leave when they are too many, nobody else's."""

import asyncio
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from services.frontend.core.limits.quotas import TenantLimits
from services.frontend.core.sessions.stored_responses import StoredResponse, new_response_id
from services.frontend.sessions import redis_scripts, response_scripts
from services.frontend.sessions import response_store as responses
from services.frontend.sessions import store as sessions
from services.frontend.sessions.redis import redis_at
from services.frontend.sessions.redis_scripts import RESERVED_BYTES, TENANT_BYTES
from services.frontend.sessions.response_store import ResponseStore
from services.frontend.sessions.store import SessionStore, Tombstone
from shared.ids import SessionId, TenantId
from shared.runtime.clock import SystemClock
from shared.wire.sessions import (
    responses_redis_key,
    session_epoch_redis_key,
    session_index_redis_key,
    session_mark,
    session_redis_key,
    session_sizes_redis_key,
    tombstone_redis_key,
)
from tests.conftest import Server
from tests.integration.frontend.sessions.test_session_store import record

A, B, C = TenantId("a"), TenantId("b:a"), TenantId("\u00e9")
NAMES = ("fox", "crow", "a:b", "sum", "owl")


class Store(SessionStore):
    """A store that knows what is in Redis."""

    def __init__(self, url: str, expiry_s: int = 60) -> None:
        super().__init__(redis_at(url), SystemClock(), expiry_s)
        self.redis: Any = Redis.from_url(url)
        self.responses = ResponseStore(self)
        self._num_turns = count(1000)  # as many digits in each

    async def save(
        self,
        name: str,
        limits: TenantLimits,
        tenant: TenantId = A,
        num_tokens: int = 0,
        word: str = "",
    ) -> int:
        """Put a record; answers what its session takes, 0: it was not stored."""
        num_turns = next(self._num_turns)
        kept = replace(record(name), tenant=tenant, tokens="t" * num_tokens, num_turns=num_turns)
        await self.put(kept, word or await self.word(name, tenant), limits)
        read = await self.read(tenant, SessionId(name))
        is_stored = read is not None and read.num_turns == num_turns
        return (await self.kept(tenant))[name] if is_stored else 0

    async def word(self, name: str, tenant: TenantId = A) -> str:
        """What a turn that begins now hands to `put`."""
        return (await self.get(tenant, SessionId(name))).epoch

    async def say(
        self, name: str, limits: TenantLimits, tenant: TenantId, num_chars: int, word: str = ""
    ) -> int:
        """Store a response; answers what its session takes, 0: it was not stored."""
        session_id = SessionId(name)
        response_id = new_response_id(session_id)
        before = next(reversed(await self.said(name, tenant)), None)
        said: dict[str, Any] = {"id": response_id, "previous_response_id": before}
        stored = StoredResponse(said, [{"text": "t" * num_chars}], [])
        word = word or await self.word(name, tenant)
        is_kept = await self.responses.put(tenant, session_id, word, stored, limits)
        return (await self.kept(tenant))[name] if is_kept else 0

    async def said(self, name: str, tenant: TenantId = A) -> list[str]:
        """Ids of the session's responses."""
        fields = await self.redis.hkeys(responses_redis_key(tenant, session_mark(SessionId(name))))
        known = sorted(field.decode() for field in fields)
        return [each for each in known if each.startswith("resp-") and ":" not in each]

    async def unsay(self, name: str, tenant: TenantId) -> None:
        """Delete one of the session's responses, if it has any."""
        for response_id in (await self.said(name, tenant))[:1]:
            await self.responses.drop(tenant, response_id)

    async def kept(self, tenant: TenantId = A) -> dict[str, int]:
        """What the tenant's sessions take, the next to leave first. Everything of it in Redis is
        counted, at what Redis needs for it or more.
        """
        sizes = await self.redis.hgetall(session_sizes_redis_key(tenant))
        total = int(sizes.pop(b"", 0))
        counted = {name.decode(): int(size.split()[0]) for name, size in sizes.items()}
        of_tenant = f"{len(tenant)}:{tenant}"
        notes = await self.redis.zrange(f"symphony:notes:{of_tenant}", 0, -1)
        sessions = await self.redis.zrange(session_index_redis_key(tenant), 0, -1)
        assert sorted(sizes) == sorted(notes + sessions) and total == sum(counted.values())
        score = await self.redis.zscore("symphony:tenants", tenant)
        assert (score or 0) == (total and total + TENANT_BYTES + 5 * len(tenant.encode()))
        known: set[bytes] = set()
        for name, size in counted.items():
            keys = self._keys_of(tenant, name)
            used = [await self.redis.memory_usage(key, samples=0) or 0 for key in keys]
            assert 0 < sum(used) <= size <= 4 * sum(used) + 2000
            known |= set(keys)
        for kind in ("session", "responses", "generation", "tombstone"):
            async for key in self.redis.scan_iter(f"symphony:{kind}:{of_tenant}:*"):
                assert key in known, "it is counted"
        return {name.decode(): counted[name.decode()] for name in sessions}

    def _keys_of(self, tenant: TenantId, name: str) -> list[bytes]:
        session_id = SessionId(name)
        keys = (
            session_redis_key(tenant, session_id),
            session_epoch_redis_key(tenant, session_id),
            tombstone_redis_key(tenant, session_id),
            responses_redis_key(tenant, session_mark(session_id)),
        )
        return [key.encode() for key in keys]

    async def close(self) -> None:
        await self.redis.aclose()
        await super().close()


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
        await store.save("old", TenantLimits(), B)
        for name in ("fox", "crow", "fox", "owl"):
            await store.save(name, limits)
        assert list(await store.kept()) == ["fox", "owl"]
        assert await store.read(A, SessionId("crow")) is None
        assert list(await store.kept(B)) == ["old"]
        await store.settle(await store.forget(A, SessionId("fox")))
        assert list(await store.kept()) == ["owl"]
        await store.forget(B, SessionId("owl"))
        assert list(await store.kept()) == ["owl"] and list(await store.kept(B)) == ["old"]

    run(redis_server, scenario)


def test_bytes_count_and_what_never_fits_is_not_kept(redis_server: Server) -> None:
    async def scenario(store: Store) -> None:
        size = await store.save("fox", TenantLimits())
        limits = TenantLimits(session_bytes=3 * size + 10)
        await store.save("crow", limits, num_tokens=len("fox"))
        await store.save("owl", limits)
        assert list(await store.kept()) == ["fox", "crow", "owl"]
        await store.save("owl", limits, num_tokens=size)
        assert list(await store.kept()) == ["crow", "owl"]
        await store.save("owl", limits, num_tokens=4 * size)
        assert list(await store.kept()) == ["crow"], "a record too large costs no other its place"

    run(redis_server, scenario)


def test_what_expired_or_was_thrown_away_is_forgotten(redis_server: Server) -> None:
    async def scenario(store: Store) -> None:
        index, sizes = session_index_redis_key(A), session_sizes_redis_key(A)
        for name in NAMES:
            await store.save(name, TenantLimits())
        assert 0 < await store.redis.ttl(index) <= 60 and 0 < await store.redis.ttl(sizes) <= 60
        for name in NAMES[:3]:  # as if a minute had passed
            await store.redis.zadd(index, {name: 1.0})
            await store.redis.delete(session_redis_key(A, SessionId(name)))
        await store.save("new", TenantLimits())
        assert list(await store.kept()) == ["sum", "owl", "new"]

        gone = [session_redis_key(A, SessionId(name)) for name in ("sum", "owl")]
        await store.redis.delete(index, *gone)
        await store.save("new", TenantLimits(session_bytes=9000))
        assert await store.redis.hlen(sizes) == 2, "sizes without names do not count"
        for name in ("newer", "newest"):
            await store.save(name, TenantLimits())
        await store.redis.delete(sizes)
        await store.put(replace(record("last"), tenant=A), "", TenantLimits(sessions=2))
        assert await store.redis.zrange(index, 0, -1) == [b"newest", b"last"]

    run(redis_server, scenario)


def test_a_step_ends(redis_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    few = redis_scripts.PUT.replace(f"num_left = {redis_scripts.LEAVING_MAX}\n", "num_left = 3\n")
    assert few != redis_scripts.PUT
    monkeypatch.setattr(sessions, "PUT", few)

    async def scenario(store: Store) -> None:
        for at in range(10):
            await store.save(f"s{at}", TenantLimits())
        limits, seen = TenantLimits(sessions=2), []
        for _ in range(3):
            await store.save("new", limits)
            seen.append(len(await store.kept()))
        assert seen == [7, 4, 2]
        assert list(await store.kept()) == ["s9", "new"]

    run(redis_server, scenario)


Step = tuple[str, TenantId, str, int, bool]


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["begin", "save", "save", "say", "say", "unsay", "forget", "settle"]),
            st.sampled_from([A, B, C]),
            st.sampled_from(NAMES),
            st.integers(0, 4000),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_tenants_keep_to_their_limits_and_hurt_no_other(
    redis_server: Server, steps: list[Step]
) -> None:
    """Any steps of tenants, some of turns that began earlier, on a Redis that all of them fill."""
    limits = {A: TenantLimits(sessions=3), B: TenantLimits(session_bytes=9000), C: TenantLimits()}
    total_max = 18_000

    async def scenario(store: Store) -> None:
        await store.redis.config_set("maxmemory", RESERVED_BYTES + total_max * 4 // 3)
        worlds = _Words(store)
        for step in steps:
            before = {tenant: await _state_of(store, tenant) for tenant in limits}
            stored = await worlds.do(step, limits[step[1]])
            after = {tenant: await _state_of(store, tenant) for tenant in limits}
            assert sum(state.num_bytes for state in after.values()) <= total_max + 2000
            share = total_max / len(limits)
            for tenant, limit in limits.items():
                was, now = before[tenant], after[tenant]
                assert now.num_bytes <= (limit.session_bytes or total_max) + 2000
                assert len(now.names) <= (limit.sessions or len(NAMES))
                staying = [name for name in now.names if name in was.names and name != step[2]]
                assert staying == [n for n in was.names if n != step[2]][-len(staying) :] or not (
                    staying
                ), "the oldest left"
                if tenant != step[1] and was.num_bytes <= share:
                    assert now == was, "within its share nothing of it left"
            mine = before[step[1]].num_bytes + step[3] + 3000
            if stored is not None and mine <= min(share, limits[step[1]].session_bytes or share):
                assert stored, "there was room for it"

    run(redis_server, scenario)


@dataclass(frozen=True)
class _State:
    names: tuple[str, ...]
    num_bytes: int


async def _state_of(store: Store, tenant: TenantId) -> _State:
    names = tuple(await store.kept(tenant))
    return _State(names, int(await store.redis.zscore("symphony:tenants", tenant) or 0))


class _Words:
    """Turns that begin, end and are deleted; what they are answered is checked.

    A turn that began before its session was deleted never stores anything. One whose tenant has
    deleted nothing since is never refused for it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._begun: dict[tuple[TenantId, str], tuple[str, bool, bool]] = {}
        self._deleted: dict[tuple[TenantId, str], Tombstone] = {}

    async def do(self, step: Step, limits: TenantLimits) -> bool | None:
        """Do it; whether something was stored that nothing but room could keep out."""
        what, tenant, name, num_chars, is_late = step
        key, store = (tenant, name), self._store
        word, was_deleted, is_other = self._begun.get(key, ("", False, False))
        if not is_late or not word:
            word, was_deleted, is_other = await store.word(name, tenant), False, False
        if what == "begin":
            has_notes = any(of == tenant for of, _ in self._deleted)  # they may leave meanwhile
            self._begun[key] = word, was_deleted, is_other or has_notes
        elif what in ("save", "say"):
            keep = store.save if what == "save" else store.say
            is_stored = bool(await keep(name, limits, tenant, num_chars, word))
            assert not (is_stored and was_deleted), "it was deleted since"
            return None if was_deleted or is_other else is_stored
        elif what == "unsay":
            await store.unsay(name, tenant)
        elif what == "settle" and key in self._deleted:
            await store.settle(self._deleted[key])
        elif what == "forget":
            self._deleted[key] = await store.forget(tenant, SessionId(name))
            assert await store.read(tenant, SessionId(name)) is None
            assert not await store.said(name, tenant)
            for of, (word, deleted, other) in list(self._begun.items()):
                self._begun[of] = word, deleted or of == key, other or of[0] == tenant
        return None


def test_a_response_too_large_costs_no_other_its_place(redis_server: Server) -> None:
    async def scenario(store: Store) -> None:
        size = await store.save("fox", TenantLimits())
        limits = TenantLimits(session_bytes=3 * size)
        await store.save("crow", limits)
        assert await store.say("crow", limits, A, 3 * size) == 0
        assert list(await store.kept()) == ["fox", "crow"]
        assert await store.say("crow", limits, A, 1) > 0
        assert list(await store.kept()) == ["crow"]

    run(redis_server, scenario)


def test_responses_outlast_a_record_that_does_not_fit(redis_server: Server) -> None:
    async def scenario(store: Store) -> None:
        size = await store.say("fox", TenantLimits(), A, 1)
        assert await store.save("fox", TenantLimits()) > size + 10
        await store.save("fox", TenantLimits(session_bytes=size + 10))
        assert await store.kept() == {"fox": size}
        await store.save("crow", TenantLimits(session_bytes=size + 10), num_tokens=2000)
        assert await store.kept() == {"fox": size}

    run(redis_server, scenario)


def test_nothing_is_left_of_what_finds_no_room(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = response_scripts.STORE.replace(
        f"num_left = {redis_scripts.LEAVING_MAX}\n", "num_left = 1\n"
    )
    assert few != response_scripts.STORE
    monkeypatch.setattr(responses, "STORE", few)

    async def scenario(store: Store) -> None:
        for name in ("fox", "crow", "owl"):
            await store.save(name, TenantLimits())
        size = await store.say("new", TenantLimits(), A, 1)
        before = await store.kept()
        assert await store.say("new", TenantLimits(sessions=2), A, 1) == 0
        assert list(await store.kept()) == ["crow", "owl", "new"] and before["new"] == size
        assert (await store.kept())["new"] == size
        assert await store.say("none", TenantLimits(sessions=1), A, 1) == 0
        assert list(await store.kept()) == ["owl", "new"]

    run(redis_server, scenario)
