"""What a tenant's sessions take of Redis: its own leave when they are too many, nobody else's."""

import asyncio
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from services.frontend import redis_scripts, response_scripts, responses, sessions
from services.frontend.core.quotas import TenantLimits
from services.frontend.core.stored_responses import (
    StoredResponse,
    encode_stored,
    new_response_id,
)
from services.frontend.responses import ResponseStore
from services.frontend.sessions import SessionStore
from shared.clock import SystemClock
from shared.ids import SessionId, TenantId
from shared.sessions import (
    encode_record,
    responses_redis_key,
    session_index_redis_key,
    session_mark,
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
        self.responses = ResponseStore(self)
        self._num_turns = count(1000)  # as many digits in each

    async def save(
        self, name: str, limits: TenantLimits, tenant: TenantId = A, num_tokens: int = 0
    ) -> int:
        """Put a record; answers its size."""
        num_turns = next(self._num_turns)
        kept = replace(record(name), tenant=tenant, tokens="t" * num_tokens, num_turns=num_turns)
        await self.put(kept, "", limits)
        return len(encode_record(kept))

    async def say(self, name: str, limits: TenantLimits, tenant: TenantId, num_chars: int) -> int:
        """Store a response; answers its size, 0: it was not stored."""
        session_id = SessionId(name)
        response_id = new_response_id(session_id)
        before = next(reversed(await self._said(name, tenant)), None)
        said: dict[str, Any] = {"id": response_id, "previous_response_id": before}
        stored = StoredResponse(said, [{"text": "t" * num_chars}], [])
        is_kept = await self.responses.put(tenant, session_id, "", stored, limits)
        parts = (*encode_stored(stored), response_id, before or "")
        return sum(map(len, parts)) * is_kept

    async def _said(self, name: str, tenant: TenantId) -> list[str]:
        """Ids of the session's responses."""
        fields = await self.redis.hkeys(responses_redis_key(tenant, session_mark(SessionId(name))))
        known = sorted(field.decode() for field in fields)
        return [each for each in known if each.startswith("resp-") and ":" not in each]

    async def unsay(self, name: str, tenant: TenantId) -> int:
        """Delete one of the session's responses; answers its size, 0: there is none."""
        key = responses_redis_key(tenant, session_mark(SessionId(name)))
        if not (ids := await self._said(name, tenant)):
            return 0
        ends = ("", ":items", ":after")
        size = sum([await self.redis.hstrlen(key, f"{ids[0]}{end}") for end in ends])
        await self.responses.drop(tenant, ids[0])
        return int(size) + len(ids[0])

    async def kept(self, tenant: TenantId = A) -> dict[str, int]:
        """Sizes of the tenant's sessions, the next to leave first; Redis counts the same."""
        sizes = await self.redis.hgetall(session_sizes_redis_key(tenant))
        names = await self.redis.zrange(session_index_redis_key(tenant), 0, -1)
        total = int(sizes.pop(b"", 0))
        found: dict[str, int] = {}
        num_records = 0
        for name in names:
            session_id = SessionId(name.decode())
            size = await self.redis.strlen(session_redis_key(tenant, session_id))
            said: dict[bytes, bytes] = await self.redis.hgetall(
                responses_redis_key(tenant, session_mark(session_id))
            )
            num_bytes = sum(
                len(value) + (0 if b":" in field else len(field))
                for field, value in said.items()
                if field.startswith(b"resp-") and not field.endswith(b":num")
            )
            assert num_bytes == int(said.get(b"", 0))
            found[session_id] = size + num_bytes
            num_records += bool(size) + bool(said)
        assert sizes == {name.encode(): b"%d" % size for name, size in found.items()}
        assert total == sum(found.values()) and all(found.values())
        patterns = session_redis_key(tenant, ALL), responses_redis_key(tenant, ALL)
        records = [key for each in patterns async for key in self.redis.scan_iter(each)]
        assert len(records) == num_records, "every record counts"
        return found

    async def close(self) -> None:
        await self.redis.aclose()
        await super().close()


ALL: Any = "*"


@dataclass(frozen=True)
class Held:
    """Bytes of a session's record and its responses."""

    record: int
    said: int

    @property
    def size(self) -> int:
        return self.record + self.said


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
        await store.forget(A, SessionId("fox"))
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

        await store.redis.delete(index)
        await store.save("new", TenantLimits(session_bytes=2000))
        assert await store.redis.hlen(sizes) == 2, "sizes of nobody do not count"
        await store.redis.delete(sizes)
        await store.save("newer", TenantLimits(sessions=2))
        await store.save("newest", TenantLimits(sessions=2))
        assert [n.decode() for n in await store.redis.zrange(index, 0, -1)] == ["newer", "newest"]

    run(redis_server, scenario)


def test_a_step_ends(redis_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    few = redis_scripts.PUT.replace(f"1, {redis_scripts.LEAVING_MAX} do", "1, 3 do")
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


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([A, B]),
            st.sampled_from(NAMES),
            st.integers(-1, 400),
            st.sampled_from(["save", "save", "say", "say", "unsay"]),
        ),
        max_size=25,
    )
)
def test_no_limit_is_passed(
    redis_server: Server, steps: list[tuple[TenantId, str, int, str]]
) -> None:
    limits = {A: TenantLimits(sessions=3, session_bytes=1500), B: TenantLimits(session_bytes=900)}

    async def scenario(store: Store) -> None:
        model: dict[TenantId, dict[str, Held]] = {A: {}, B: {}}

        def keep(tenant: TenantId, name: str, held: Held) -> bool:
            """Whether it fits; those of the least recent use make room."""
            mine, limit = model[tenant], limits[tenant]
            if held.size > limit.session_bytes:
                return False
            while mine and (
                sum(each.size for each in mine.values()) + held.size > limit.session_bytes
                or 0 < limit.sessions <= len(mine)
            ):
                del mine[next(iter(mine))]
            mine[name] = held
            return True

        for tenant, name, num_chars, step in steps:
            mine, limit = model[tenant], limits[tenant]
            before = mine.get(name, Held(0, 0))
            if num_chars < 0:
                mine.pop(name, None)
                await store.forget(tenant, SessionId(name))
                await store.redis.delete(f"symphony:generation:{len(tenant)}:{tenant}:{name}")
            elif step == "save":
                mine.pop(name, None)
                size = await store.save(name, limit, tenant, num_chars)
                if not keep(tenant, name, Held(size, before.said)) and before.said:
                    mine[name] = Held(0, before.said)
            elif step == "say":
                size = await store.say(name, limit, tenant, num_chars)
                if size:
                    mine.pop(name, None)
                    assert keep(tenant, name, Held(before.record, before.said + size))
            else:
                size = await store.unsay(name, tenant)
                held = Held(before.record, before.said - size)
                if size and held.size:
                    mine[name] = held
                elif size:
                    del mine[name]
            for each in (A, B):
                sizes = {name: held.size for name, held in model[each].items()}
                assert list((await store.kept(each)).items()) == list(sizes.items())

    run(redis_server, scenario)


def test_a_response_too_large_costs_no_other_its_place(redis_server: Server) -> None:
    async def scenario(store: Store) -> None:
        size = await store.save("fox", TenantLimits())
        limits = TenantLimits(session_bytes=2 * size + 10)
        await store.save("crow", limits)
        assert await store.say("crow", limits, A, 3 * size) == 0
        assert list(await store.kept()) == ["fox", "crow"]
        assert await store.say("crow", limits, A, 1) > 0
        assert list(await store.kept()) == ["crow"]

    run(redis_server, scenario)


def test_responses_outlast_a_record_that_does_not_fit(redis_server: Server) -> None:
    async def scenario(store: Store) -> None:
        size = await store.say("fox", TenantLimits(), A, 1)
        assert await store.save("fox", TenantLimits()) > 10
        await store.save("fox", TenantLimits(session_bytes=size + 10))
        assert await store.kept() == {"fox": size}
        await store.save("crow", TenantLimits(session_bytes=size + 10))
        assert await store.kept() == {"fox": size}

    run(redis_server, scenario)


def test_nothing_is_left_of_what_finds_no_room(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = response_scripts.STORE.replace(f"1, {redis_scripts.LEAVING_MAX} do", "1, 1 do")
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
