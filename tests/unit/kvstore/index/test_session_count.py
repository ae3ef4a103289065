"""Counting sessions: in the background, and no sign of how Redis is."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.exceptions import RedisError

from services.kvstore.core.disk.disk_tier import DiskTier
from services.kvstore.core.tiers.locations import Locations
from services.kvstore.index.redis_index import RedisIndex
from services.kvstore.index.redis_link import REDIS_FAILURES
from services.kvstore.index.session_count import (
    COUNT_KEY,
    TURN_KEY,
    SessionCount,
    session_redis_pattern,
)
from shared.ids import HostId
from shared.runtime.clock import SystemClock
from tests.counters import value_of


class Names:
    """A Redis that is read through, and what goes wrong on the way. Keys stay until `expire`."""

    def __init__(self) -> None:
        self.num = 3
        self.keys: dict[str, Any] = {}
        self.trouble: Exception | None = None
        self.is_stuck = False
        self.num_scans = 0

    async def set(self, key: str, value: Any, px: int, nx: bool = False) -> bool | None:
        assert px > 0
        if nx and key in self.keys:
            return None
        self.keys[key] = value
        return True

    async def get(self, key: str) -> bytes | None:
        value = self.keys.get(key)
        return None if value is None else str(value).encode()

    def expire(self) -> None:
        """Let the next one count."""
        self.keys.pop(TURN_KEY, None)

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


def test_one_host_counts_for_all() -> None:
    redis: Any = Names()
    hosts = [SessionCount(redis, SystemClock()) for _ in range(5)]

    async def all_learn() -> None:
        for host in hosts:
            await host.learn()

    asyncio.run(all_learn())
    assert redis.num_scans == 1 and [host.num_sessions for host in hosts] == [3] * 5
    redis.num = 4
    redis.expire()
    asyncio.run(all_learn())
    assert redis.num_scans == 2 and [host.num_sessions for host in hosts] == [4] * 5


def test_a_count_that_fails_leaves_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    redis: Any = Names()
    sessions = SessionCount(redis, SystemClock())
    asyncio.run(sessions.learn())
    assert sessions.num_sessions == 3
    redis.num, redis.trouble = 9, RedisError("slow")
    redis.expire()
    asyncio.run(sessions.learn())
    asyncio.run(sessions.learn())  # its turn is not over: no other counts before that
    assert redis.num_scans == 2
    redis.keys[COUNT_KEY] = "no number"
    asyncio.run(sessions.learn())
    redis.trouble, redis.is_stuck = None, True
    redis.expire()
    monkeypatch.setattr("services.kvstore.index.session_count.TIMEOUT_S", 0.001)
    asyncio.run(sessions.learn())
    assert sessions.num_sessions == 3 and redis.num_scans == 3


def test_a_cancellation_that_the_client_library_swallows_ends_the_counting() -> None:
    class Swallowing(Names):
        def __init__(self) -> None:
            super().__init__()
            self.scanned = asyncio.Event()

        async def scan_iter(self, match: str, count: int) -> AsyncIterator[bytes]:
            self.scanned.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                yield b"the last"

    async def scenario() -> None:
        redis: Any = Swallowing()
        task = asyncio.create_task(SessionCount(redis, SystemClock()).run())
        await redis.scanned.wait()
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=5)
        assert done and task.cancelled()

    asyncio.run(scenario())


def test_asking_makes_no_load_and_a_slow_count_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    redis: Any = Names()
    redis.is_stuck = True
    monkeypatch.setattr("services.kvstore.index.session_count.TIMEOUT_S", 0.001)
    failures = value_of(REDIS_FAILURES)

    async def scenario() -> None:
        index = RedisIndex(redis, HostId("h"), 60, Locations(DiskTier(1)), SystemClock())
        for _ in range(100):
            assert await index.count_sessions() == 0
        assert redis.num_scans == 0
        await index._sessions.learn()

    asyncio.run(scenario())
    assert redis.num_scans == 1 and value_of(REDIS_FAILURES) == failures
