"""What is told to Redis, whenever the kvstore stops."""

import asyncio
from collections.abc import Collection

import pytest

from services.kvstore.index import RedisIndex
from shared.blocks import BlockKey
from shared.ids import HostId

KEYS = [BlockKey(bytes([number]) * 16) for number in range(3)]


def test_what_a_stop_cuts_off_is_sent_at_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        index = RedisIndex("redis://nowhere", HostId("h"), 60, lambda: dict.fromkeys(KEYS).keys())
        sent: list[tuple[set[BlockKey], set[BlockKey]]] = []
        has_begun = asyncio.Event()

        async def send(added: Collection[BlockKey], removed: Collection[BlockKey]) -> None:
            if not has_begun.is_set():
                has_begun.set()
                await asyncio.Event().wait()  # until it is cancelled
            sent.append((set(added), set(removed)))

        monkeypatch.setattr(index, "_send", send)
        index._is_in_step = True
        index.add(KEYS[:2])
        sending = asyncio.create_task(index._send_changes())
        await has_begun.wait()
        index.remove(KEYS[1:])
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await index.close()
        assert sent == [({KEYS[0]}, set(KEYS[1:]))]

    asyncio.run(scenario())


class SlowRedis:
    """Lists nothing, and does not answer its first question before it is cancelled."""

    def __init__(self, *, breaks: bool) -> None:
        self.is_asked = asyncio.Event()
        self._breaks = breaks

    async def smembers(self, _: str) -> set[bytes]:
        if not self.is_asked.is_set():
            self.is_asked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if self._breaks:  # as its client says of a connection that was cut
                    raise ConnectionError("cut") from None
                raise
        return set()

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize("breaks", [False, True])
def test_a_first_publication_that_a_stop_cuts_off_is_made_at_the_close(
    monkeypatch: pytest.MonkeyPatch, *, breaks: bool
) -> None:
    async def scenario() -> None:
        index = RedisIndex("redis://nowhere", HostId("h"), 60, lambda: dict.fromkeys(KEYS).keys())
        redis = SlowRedis(breaks=breaks)
        index._redis = redis
        sent: set[BlockKey] = set()

        async def send(added: Collection[BlockKey], removed: Collection[BlockKey]) -> None:
            sent.update(added)

        monkeypatch.setattr(index, "_send", send)
        keeping = asyncio.create_task(index._keep_in_step())
        await redis.is_asked.wait()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await index.close()
        assert sent == set(KEYS)

    asyncio.run(scenario())


def test_a_redis_that_is_away_is_not_asked_at_the_close() -> None:
    async def scenario() -> None:
        index = RedisIndex("redis://nowhere", HostId("h"), 60, lambda: dict.fromkeys(KEYS).keys())
        redis = SlowRedis(breaks=False)
        index._redis = redis
        index._failed(ConnectionError("away"))
        await index.close()
        assert not redis.is_asked.is_set()

    asyncio.run(scenario())
