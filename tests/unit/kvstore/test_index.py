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
