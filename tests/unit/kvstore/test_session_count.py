"""Counting sessions: in the background, and no sign of how Redis is."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.exceptions import RedisError

from services.kvstore.core.disk_tier import DiskTier
from services.kvstore.core.locations import Locations
from services.kvstore.index import RedisIndex
from services.kvstore.session_count import SessionCount, session_redis_pattern
from services.kvstore.telemetry import REDIS_FAILURES
from shared.ids import HostId


class Names:
    """A Redis that is read through, and what goes wrong on the way."""

    def __init__(self) -> None:
        self.num = 3
        self.trouble: Exception | None = None
        self.is_stuck = False
        self.num_scans = 0

    async def scan_iter(self, match: str, count: int) -> AsyncIterator[bytes]:
        self.num_scans += 1
        for number in range(self.num):
            yield f"{match}{number}".encode()
        if self.trouble is not None:
            raise self.trouble
        if self.is_stuck:
            await asyncio.Event().wait()


def test_the_pattern_of_session_records() -> None:
    assert session_redis_pattern() == "symphony:session:*"


def test_a_count_that_fails_leaves_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    redis = Names()
    sessions = SessionCount(redis)
    asyncio.run(sessions.count())
    assert sessions.num_sessions == 3
    redis.num, redis.trouble = 9, RedisError("slow")
    asyncio.run(sessions.count())
    redis.trouble, redis.is_stuck = None, True
    monkeypatch.setattr("services.kvstore.session_count.TIMEOUT_S", 0)
    asyncio.run(sessions.count())
    assert sessions.num_sessions == 3 and redis.num_scans == 3


def test_a_cancellation_that_the_client_library_swallows_ends_the_counting() -> None:
    class Swallowing(Names):
        async def scan_iter(self, match: str, count: int) -> AsyncIterator[bytes]:
            self.num_scans += 1
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                yield b"the last"

    async def scenario() -> None:
        redis = Swallowing()
        task = asyncio.create_task(SessionCount(redis).run())
        await asyncio.sleep(0)
        assert redis.num_scans == 1
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=5)
        assert done and task.cancelled()

    asyncio.run(scenario())


def test_asking_makes_no_load_and_a_slow_count_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    redis = Names()
    redis.is_stuck = True
    monkeypatch.setattr("services.kvstore.index.connect", lambda *_, **__: redis)
    monkeypatch.setattr("services.kvstore.session_count.TIMEOUT_S", 0)
    failures = REDIS_FAILURES._value.get()

    async def scenario() -> None:
        index = RedisIndex("redis://127.0.0.1:1/0", HostId("h"), 60, Locations(DiskTier(1)))
        for _ in range(100):
            assert await index.count_sessions() == 0
        assert redis.num_scans == 0
        await index._sessions.count()

    asyncio.run(scenario())
    assert redis.num_scans == 1 and REDIS_FAILURES._value.get() == failures
