"""The session store on a Redis that answers, but not as one would like."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from services.frontend.sessions import SessionStore, StoreAway
from shared.clock import SystemClock
from shared.ids import DEFAULT_TENANT, ModelId, SessionId
from shared.sessions import SessionRecord
from tests.conftest import Server


def record(name: str) -> SessionRecord:
    return SessionRecord(
        session_id=SessionId(name), tenant=DEFAULT_TENANT, model_id=ModelId("m"), fingerprint="f",
        tokens="", block_keys="", prompt_text="", reply_text="", num_tokens=0,
        num_turns=1, last_used=0.0, expires=0.0,
    )  # fmt: skip


def test_refused_writes_do_not_keep_anybody_from_reading(
    redis_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        store = SessionStore(redis_server.url, SystemClock(), 60)
        redis: Any = Redis.from_url(redis_server.url)
        await store.put(record("kept"))
        await redis.config_set("maxmemory", 1)
        for _ in range(3):
            await store.put(record("refused"))
            assert await store.read(DEFAULT_TENANT, SessionId("kept")) is not None
        with pytest.raises(StoreAway, match="refuses"):
            await store._do("set", "x", "y")
        await redis.config_set("maxmemory", 0)
        await store.put(record("refused"))
        assert await store.read(DEFAULT_TENANT, SessionId("refused")) is not None
        await redis.aclose()
        await store.close()

    asyncio.run(scenario())
    assert caplog.text.count("session store refuses") == 1
