"""Who writes an answer: the event loop, or a thread beside it."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from services.frontend.api.text.delivery import ENTRIES_AT_ONCE, answer_whole, stream_chunks
from services.frontend.api.text.items import named_event
from services.frontend.api.text.writing import Writer
from services.frontend.core.replies.choice import Piece
from services.frontend.http.answers import EventStream
from services.frontend.tenants.gates import Gates


class Generation:
    """One piece, at once."""

    gates = Gates(ThreadPoolExecutor, is_shared=False)

    def __enter__(self) -> "Generation":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        yield [Piece(index=0, text="x")]


class Pen:
    """Tells which thread writes."""

    def __init__(self, num_entries: int) -> None:
        self.generation = Generation()
        self._num_entries = num_entries

    def num_entries(self, _: Piece | None) -> int:
        return self._num_entries

    def chunks(self, _: Piece) -> list[bytes]:
        return [threading.current_thread().name.encode()]

    async def settle(self) -> None:
        pass

    def last_chunks(self) -> list[bytes]:
        return []

    def add(self, piece: Piece) -> None:
        pass

    def whole(self) -> bytes:
        return threading.current_thread().name.encode()


@pytest.mark.parametrize("num_entries", [0, ENTRIES_AT_ONCE, ENTRIES_AT_ONCE + 1, 100_000])
def test_what_takes_long_to_write_keeps_nobody_waiting(num_entries: int) -> None:
    async def scenario() -> list[bytes]:
        pen = cast(Writer, Pen(num_entries))
        streamed = [chunk async for chunks in stream_chunks(pen) for chunk in chunks]
        return [await answer_whole(pen), streamed[0]]

    loop_s = threading.current_thread().name.encode()
    is_long = num_entries > ENTRIES_AT_ONCE
    assert [name != loop_s for name in asyncio.run(scenario())] == [is_long, is_long]


def test_an_event_s_name_comes_before_its_data() -> None:
    async def scenario() -> bytes:
        async def rest() -> AsyncGenerator[list[bytes], None]:
            yield [b'{"a":1}', b"[DONE]"]

        first = [named_event("error", code="x"), named_event("ping")]
        stream = EventStream(first, rest(), lambda: None)
        return b"".join([bytes(part) async for part in stream.body_iterator])  # type: ignore[arg-type]

    assert asyncio.run(scenario()) == (
        b'event: error\ndata: {"type":"error","code":"x"}\n\n'
        b'event: ping\ndata: {"type":"ping"}\n\n'
        b'data: {"a":1}\n\n'
        b"data: [DONE]\n\n"
    )
