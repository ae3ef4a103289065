"""What Redis is sent, whenever the kvstore stops."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from services.kvstore.core.disk.disk_tier import DiskTier
from services.kvstore.core.disk.stored_block import StoredBlock
from services.kvstore.core.tiers import locations
from services.kvstore.core.tiers.locations import Locations, LocationUpdate
from services.kvstore.index.redis_index import RedisIndex
from shared.blocks import BlockKey
from shared.ids import HostId
from shared.owners import OwnerKey
from shared.runtime.clock import SystemClock

FOX, CROW = OwnerKey(b"f" * 16), OwnerKey(b"c" * 16)


def store(disk: DiskTier, number: int, owner: OwnerKey) -> None:
    disk.add(StoredBlock(BlockKey(bytes([number]) * 16), 1, 10, 10, 1, 1, owner))


class SlowRedis:
    """Knows nothing, and does not answer its first question before it is cancelled."""

    def __init__(self, *, breaks: bool = False) -> None:
        self.is_asked = asyncio.Event()
        self._breaks = breaks

    async def hget(self, *_: str) -> None:
        if not self.is_asked.is_set():
            self.is_asked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if self._breaks:  # as its client says of a connection that was cut
                    raise ConnectionError("cut") from None
                raise

    async def aclose(self) -> None:
        pass


def index_of(disk: DiskTier, redis: Any) -> RedisIndex:
    return RedisIndex(redis, HostId("h"), 60, Locations(disk), SystemClock())


def hear(
    index: RedisIndex,
    monkeypatch: pytest.MonkeyPatch,
    takes: Callable[[LocationUpdate], bool] = lambda update: True,
) -> list[LocationUpdate]:
    """What it sends, to a Redis that `takes` some of it."""
    sent: list[LocationUpdate] = []

    async def send(update: LocationUpdate) -> bool:
        sent.append(update)
        return takes(update)

    monkeypatch.setattr(index, "_send", send)
    return sent


async def step(index: RedisIndex) -> bool:
    """Let it send once; whether it has more to send."""
    return await index._step()


def sessions_in(sent: list[LocationUpdate]) -> dict[OwnerKey, int]:
    return {owner: num for update in sent for owner, num in update.sessions.items()}


def test_what_a_stop_cuts_off_is_sent_at_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        disk, redis = DiskTier(10**9), SlowRedis()
        redis.is_asked.set()
        index = index_of(disk, redis)
        sent: list[LocationUpdate] = []
        has_begun = asyncio.Event()

        async def send(update: LocationUpdate) -> bool:
            if not has_begun.is_set():
                has_begun.set()
                await asyncio.Event().wait()  # until it is cancelled
            sent.append(update)
            return True

        monkeypatch.setattr(index, "_send", send)
        store(disk, 1, FOX)
        sending = asyncio.create_task(step(index))
        await has_begun.wait()
        store(disk, 2, CROW)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await index.close()
        (update,) = sent
        assert update.sessions == {FOX: 1, CROW: 1} and update.claim.num_sessions == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("breaks", [False, True])
def test_a_first_publication_that_a_stop_cuts_off_is_made_at_the_close(
    monkeypatch: pytest.MonkeyPatch, *, breaks: bool
) -> None:
    async def scenario() -> None:
        disk, redis = DiskTier(10**9), SlowRedis(breaks=breaks)
        index = index_of(disk, redis)
        sent = hear(index, monkeypatch)
        store(disk, 1, FOX)
        keeping = asyncio.create_task(index.keep_in_step())
        await redis.is_asked.wait()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await index.close()
        assert sessions_in(sent) == {FOX: 1}

    asyncio.run(scenario())


def test_sessions_that_went_meanwhile_do_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(locations, "COUNTED_MAX", 2)

    async def scenario() -> None:
        disk, redis = DiskTier(10**9), SlowRedis()
        redis.is_asked.set()
        index = index_of(disk, redis)
        sent = hear(index, monkeypatch)
        store(disk, 99, FOX)
        for number in range(1, 30):
            store(disk, number, OwnerKey(bytes([number]) * 16))
        await index._check()
        index._checked_at_ns = time.monotonic_ns()
        index._locations._is_claimed = True
        for number in range(1, 30):
            disk.remove(BlockKey(bytes([number]) * 16))
        await step(index)
        assert sessions_in(sent) == {FOX: 1} and not index._locations.has_news

    asyncio.run(scenario())


def test_a_redis_that_is_away_is_not_asked_at_the_close() -> None:
    async def scenario() -> None:
        redis = SlowRedis()
        index = index_of(DiskTier(10**9), redis)
        index._presence.on_failed(ConnectionError("away"))
        await index.close()
        assert not redis.is_asked.is_set()

    asyncio.run(scenario())


def test_a_host_whose_claim_is_another_one_s_waits_before_it_says_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where two kvstores use one host id: they must not keep Redis and themselves busy."""

    async def scenario() -> None:
        disk, redis = DiskTier(10**9), SlowRedis()
        redis.is_asked.set()
        index = index_of(disk, redis)
        sent = hear(index, monkeypatch, lambda update: update.before is None)
        store(disk, 1, FOX)
        assert await step(index)
        store(disk, 2, CROW)
        assert not await step(index) and len(sent) == 2
        assert await step(index), "a new life"
        assert sent[-1].before is None and sent[-1].sessions == {FOX: 1, CROW: 1}

    asyncio.run(scenario())
