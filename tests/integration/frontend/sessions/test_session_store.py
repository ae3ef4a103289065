"""The session store on a Redis that answers, but not as one would like."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from cli.base.children import free_port, stop_child
from loadtest.servers import start_redis, wait_for_port
from services.frontend.config import TURN_S_MAX, FrontendConfig
from services.frontend.core.limits.quotas import TenantLimits
from services.frontend.sessions import aof
from services.frontend.sessions.redis import redis_at
from services.frontend.sessions.store import (
    LIVES_NS,
    LOCATING_MAX,
    KnownSession,
    SessionStore,
    StoreAway,
)
from shared.expiry import EXPIRY_S_MAX
from shared.ids import DEFAULT_TENANT, HostId, ModelId, SessionId, TenantId
from shared.locations import (
    ANYWHERE,
    BLOCKS_MAX,
    KV_HOSTS_KEY,
    HostClaim,
    encode_claim,
    location_redis_key,
)
from shared.owners import owner_key
from shared.runtime.clock import ManualClock, SystemClock
from shared.wire.sessions import (
    SessionRecord,
    TextMark,
    session_epoch_redis_key,
    session_redis_key,
    tombstone_redis_key,
)
from tests.conftest import Server
from tests.integration.harness import eventually

NOTHING = TextMark.of("")
NO_LIMITS = TenantLimits()


def record(name: str) -> SessionRecord:
    return SessionRecord(
        session_id=SessionId(name), tenant=DEFAULT_TENANT, model_id=ModelId("m"), fingerprint="f",
        tokens="", block_keys="", prompt=NOTHING, reply=NOTHING, stripped_reply=NOTHING,
        num_tokens=0, num_turns=1, last_used=0.0, expires=0.0,
    )  # fmt: skip


def test_refused_writes_do_not_keep_anybody_from_reading(
    redis_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        store = SessionStore(redis_at(redis_server.url), SystemClock(), 60)
        redis: Any = Redis.from_url(redis_server.url)
        await store.put(record("kept"), "", NO_LIMITS)
        await redis.config_set("maxmemory", 1)
        for _ in range(3):
            await store.put(record("refused"), "", NO_LIMITS)
            assert await store.read(DEFAULT_TENANT, SessionId("refused")) is None
            assert await store.read(DEFAULT_TENANT, SessionId("kept")) is not None
        with pytest.raises(StoreAway, match="refuses"):
            await store.do("set", "x", "y")
        await redis.config_set("maxmemory", 0)
        await store.put(record("refused"), "", NO_LIMITS)
        assert await store.read(DEFAULT_TENANT, SessionId("refused")) is not None
        await redis.aclose()
        await store.close()

    asyncio.run(scenario())
    assert caplog.text.count("session store refuses") == 1


@pytest.mark.parametrize("text", ["", '"num_turns":7', '\\"num_turns\\":7'])
def test_of_two_turns_that_began_with_one_record_the_first_one_stores_its_own(
    redis_server: Server, text: str
) -> None:
    """Whatever clients have Redis keep."""
    fox = SessionId("fox")

    async def scenario() -> None:
        store = SessionStore(redis_at(redis_server.url), SystemClock(), 60)
        redis: Any = Redis.from_url(redis_server.url)
        first = replace(record("fox"), cache_salt=text, model_id=ModelId(text or "m"))

        async def after(number: int, block_keys: str) -> str:
            await store.put(replace(first, num_turns=number, block_keys=block_keys), "", NO_LIMITS)
            stored = await store.read(DEFAULT_TENANT, fox)
            assert stored is not None
            return stored.block_keys

        assert await after(1, "aa") == "aa"
        assert await after(2, "bb") == "bb"
        assert await after(2, "cc") == "bb"
        assert await after(1, "dd") == "bb"
        assert await after(10, "ee") == "ee"
        await redis.set(session_redis_key(DEFAULT_TENANT, fox), b"of another release")
        assert await after(1, "ff") == "ff"
        await redis.aclose()
        await store.close()

    asyncio.run(scenario())


def test_notes_of_a_deletion_outlive_turns_and_blocks(redis_server: Server) -> None:
    """Else a long turn restored its session, and a repeated deletion missed blocks."""

    async def scenario() -> None:
        store = SessionStore(redis_at(redis_server.url), SystemClock(), 60)
        fox = SessionId("fox")
        await store.put(record("fox"), "", NO_LIMITS)
        await store.forget(DEFAULT_TENANT, fox)
        assert await store.do("ttl", session_epoch_redis_key(DEFAULT_TENANT, fox)) > TURN_S_MAX
        kept_s = await store.do("ttl", tombstone_redis_key(DEFAULT_TENANT, fox))
        assert kept_s > EXPIRY_S_MAX - 60
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("turn_s_max", [0.0, TURN_S_MAX + 1.0])
def test_turns_are_bounded(turn_s_max: float) -> None:
    with pytest.raises(ValidationError, match="turn_s_max"):
        FrontendConfig(turn_s_max=turn_s_max)


def test_a_turn_that_began_before_the_deletion_stores_nothing(redis_server: Server) -> None:
    fox = SessionId("fox")

    async def scenario() -> None:
        store = SessionStore(redis_at(redis_server.url), SystemClock(), 60)
        before = (await store.get(DEFAULT_TENANT, fox)).epoch
        await store.put(replace(record("fox"), block_keys="aa"), before, NO_LIMITS)
        tombstone = await store.forget(DEFAULT_TENANT, fox)
        assert tombstone.found and tombstone.block_keys == "aa"
        await store.put(record("fox"), before, NO_LIMITS)
        known = await store.get(DEFAULT_TENANT, fox)
        after = known.epoch
        assert known.record is None and after not in ("", before)

        await store.put(replace(record("fox"), block_keys="bb"), after, NO_LIMITS)
        again = await store.forget(DEFAULT_TENANT, fox)
        assert again.block_keys == "aabb", "what the first deletion did not settle is known still"
        await store.settle(tombstone)
        assert (await store.forget(DEFAULT_TENANT, fox)).block_keys == "aabb", "settled too late"
        last = await store.forget(DEFAULT_TENANT, fox)
        await store.settle(last)
        forgotten = await store.forget(DEFAULT_TENANT, fox)
        assert not forgotten.found and forgotten.block_keys == ""
        await store.settle(forgotten)

        redis: Any = Redis.from_url(redis_server.url)
        await redis.delete(session_epoch_redis_key(DEFAULT_TENANT, fox))  # as after two hours
        await store.put(record("fox"), after, NO_LIMITS)
        assert await store.read(DEFAULT_TENANT, fox) is not None
        assert (await store.get(DEFAULT_TENANT, fox)).epoch == " 0 0"
        await redis.set(session_redis_key(DEFAULT_TENANT, fox), b"of another release")
        assert (await store.forget(DEFAULT_TENANT, fox)).found
        assert await store.read(DEFAULT_TENANT, fox) is None
        await redis.aclose()
        await store.close()

    asyncio.run(scenario())


def test_a_session_is_known_with_where_its_kv_is(redis_server: Server) -> None:
    fox, clock = SessionId("fox"), ManualClock(start_ns=1)
    key = location_redis_key(owner_key(DEFAULT_TENANT, fox))

    async def scenario() -> None:
        store = SessionStore(redis_at(redis_server.url), clock, 60)
        redis: Any = Redis.from_url(redis_server.url)
        await redis.hset(KV_HOSTS_KEY, "h1", encode_claim(HostClaim("new", 7, 1)))
        await redis.hset(KV_HOSTS_KEY, "h2", encode_claim(HostClaim("b", 7, 1)))
        await redis.hset(key, mapping={"h1": "new 3", "h2": "b 5", "h3": "c 9", "h 4": "b 2"})
        await store.put(record("fox"), "", NO_LIMITS)
        known = await store.get(DEFAULT_TENANT, fox)
        assert known.record is not None and list(known.kv_at.items()) == [("h2", 5), ("h1", 3)]
        assert await store.locate(DEFAULT_TENANT, fox) == known.kv_at
        assert not (await store.get(TenantId("other"), fox)).kv_at

        await redis.hset(KV_HOSTS_KEY, "h1", encode_claim(HostClaim("newer", 7, 1)))
        assert (await store.get(DEFAULT_TENANT, fox)).kv_at[HostId("h1")] == 3, "asked a moment ago"
        clock.advance(LIVES_NS)
        assert (await store.get(DEFAULT_TENANT, fox)).kv_at == {"h2": 5}
        await redis.hset(key, "h2", "b five")
        assert (await store.get(DEFAULT_TENANT, fox)).kv_at == {}

        clock.advance(LIVES_NS)
        for each in (key, KV_HOSTS_KEY):  # of another kind: neither keeps the record from anybody
            await redis.set(each, b"nonsense")
            known = await store.get(DEFAULT_TENANT, fox)
            assert known.record is not None and known.kv_at == {}
            assert await store.locate(DEFAULT_TENANT, fox) == {}
        await redis.aclose()
        await store.close()
        assert await store.get(DEFAULT_TENANT, fox) == KnownSession(kv_at={ANYWHERE: BLOCKS_MAX})

    asyncio.run(scenario())


def test_advisories_make_no_turn_wait_for_its_record() -> None:
    """Neither many at once nor a Redis that answers none of them."""
    fox, clock = SessionId("fox"), ManualClock(start_ns=1)

    async def scenario() -> None:
        store = SessionStore(redis_at("redis://127.0.0.1:1/0"), clock, 60)
        asked: list[asyncio.Future[None]] = []

        async def together(*_: object, is_needed: bool = True) -> None:
            asked.append(asyncio.get_running_loop().create_future())
            await asked[-1]

        answering, store._together = store._together, together  # type: ignore[method-assign,assignment]
        locating = [asyncio.create_task(store.locate(DEFAULT_TENANT, fox)) for _ in range(100)]
        await asyncio.sleep(0)
        assert len(asked) == LOCATING_MAX
        for each in asked:
            each.set_exception(StoreAway("away"))
        assert await asyncio.gather(*locating) == [{}] * 100
        store._together = answering  # type: ignore[method-assign]
        assert await store.locate(DEFAULT_TENANT, fox) == {}
        assert not store._paused_until_ns, "whoever needs a record asks for it all the same"
        await store.get(DEFAULT_TENANT, fox)
        assert store._paused_until_ns
        await store.close()

    asyncio.run(scenario())


def files_of(folder: Path) -> bytes:
    """Everything that Redis has in its files."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_what_was_deleted_leaves_the_append_only_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aof, "PAUSE_S", 0.1)
    monkeypatch.setattr(aof, "POLL_S", 0.01)
    folder = tmp_path / "redis"
    port = free_port()
    child = start_redis(port, folder, append_only=True)
    wait_for_port(child, port, "redis")
    url = f"redis://127.0.0.1:{port}/0"

    async def scenario() -> None:
        store = SessionStore(redis_at(url), SystemClock(), 60)
        redis: Any = Redis.from_url(url)
        await redis.config_set("aof-use-rdb-preamble", "no")  # plain, not compressed
        await redis.aclose()
        running = asyncio.create_task(store.run())
        for name in ("fox", "crow"):
            await store.put(replace(record(name), tokens=f"tokens-of-{name}"), "", NO_LIMITS)
        await eventually(lambda: b"tokens-of-fox" in files_of(folder))
        for _ in range(20):
            await store.forget(DEFAULT_TENANT, SessionId("fox"))
        await eventually(lambda: b"tokens-of-fox" not in files_of(folder))
        assert b"tokens-of-crow" in files_of(folder)
        await eventually(lambda: not store._rewriter._wanted.is_set())
        assert store._rewriter.num_rewritten <= 3, "one for many deletions"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await store.close()

    try:
        asyncio.run(scenario())
    finally:
        stop_child(child)


def _has_more(asked: list[str], number: int) -> bool:
    return len(asked) > number


def test_a_redis_that_does_not_rewrite_is_told_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aof, "PAUSE_S", 0.0)
    asked: list[str] = []

    class Refusing:
        """A Redis whose administrator renamed the command away."""

        async def execute_command(self, name: str, *_: str) -> dict[str, int]:
            if name == "INFO":
                return {"aof_enabled": 1}
            asked.append(name)
            raise ResponseError("unknown command")

    async def scenario() -> None:
        rewriter = aof.AofRewriter(cast(Any, Refusing()))
        running = asyncio.create_task(rewriter.run())
        for number in range(3):
            rewriter.ask()
            await eventually(partial(_has_more, asked, number))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())
    assert caplog.text.count("does not rewrite") == 1
