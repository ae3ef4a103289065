"""NATS restarted and the service stopped while a reply is being streamed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson

from shared.wire.messages import Empty
from shared.wire.subjects import SERVICE_STATUS
from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, Deployment, Reply, deployment, eventually
from tests.integration.harness import eventually_answers

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}
TEXT = "a long enough reply"


class Events:
    """The events of one streamed chat, as they come."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()
        self.data: list[str] = []

    async def read(self, num_max: int = 1_000) -> None:
        """Read on, until the stream's end or for `num_max` events."""
        async for line in self._lines:
            if line.startswith("data: "):
                self.data.append(line[6:])
                num_max -= 1
                if not num_max:
                    return

    def text(self) -> str:
        """What was said so far."""
        chunks = [orjson.loads(data) for data in self.data if data != "[DONE]"]
        return "".join(
            choice["delta"].get("content", "")
            for chunk in chunks
            for choice in chunk.get("choices", ())
        )

    def error_code(self) -> str:
        """The code of the error that ended the stream, which was no false end."""
        assert "[DONE]" not in self.data and '"finish_reason":"' not in "".join(self.data)
        code = orjson.loads(self.data[-1])["error"]["code"]
        assert isinstance(code, str)
        return code


@asynccontextmanager
async def streaming(it: Deployment) -> AsyncIterator[Events]:
    """A reply of which some has been read."""
    async with it.http.stream("POST", "/v1/chat/completions", json=CHAT) as response:
        assert response.status_code == 200
        events = Events(response)
        await events.read(3)
        yield events


def test_a_stream_goes_on_after_nats_was_restarted(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        said = Reply(TEXT, hold=asyncio.Event(), hold_at=4)
        async with deployment(nats_server, redis_server, tmp_path, lambda _: said) as it:
            async with streaming(it) as events:
                nats_server.kill()
                await eventually(lambda: not it.bus.connected and not it.runtime.bus.connected)
                nats_server.start()

                async def status() -> list[Any]:
                    if not it.bus.connected:
                        return []
                    return await it.bus.gather(SERVICE_STATUS, Empty(), num_max=1)

                await eventually_answers(status, bool)
                assert said.hold is not None
                said.hold.set()
                await events.read()
            assert events.text() == TEXT
            assert events.data[-1] == "[DONE]"

    asyncio.run(scenario())


def test_a_stream_that_nobody_feeds_ends_with_an_error(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        said = Reply(TEXT, hold=asyncio.Event(), hold_at=4)
        limits: dict[str, Any] = {"resubmit_silent_s": 0.2, "give_up_s": 0.5}
        async with deployment(nats_server, redis_server, tmp_path, lambda _: said, **limits) as it:
            async with streaming(it) as events:
                nats_server.kill()
                await events.read()
            assert TEXT.startswith(events.text())
            assert events.error_code() == "no_capacity"
            nats_server.start()
            await eventually(lambda: it.bus.connected and it.runtime.bus.connected)

    asyncio.run(scenario())


def test_a_stream_that_takes_too_long_ends_with_an_error_and_its_worker_stops(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        said = Reply(TEXT, hold=asyncio.Event(), hold_at=4)
        async with deployment(
            nats_server, redis_server, tmp_path, lambda _: said, turn_s_max=1
        ) as it:
            async with streaming(it) as events:
                await events.read()
            assert TEXT.startswith(events.text())
            assert events.error_code() == "turn_timeout"
            await eventually(lambda: bool(it.fake.cancels))

    asyncio.run(scenario())


def test_a_model_without_workers_is_not_listed_and_its_turns_go_to_the_scheduler(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path) as it:
            it.fake.is_reporting = False

            async def health() -> int:
                return (await it.http.get("/health")).status_code

            await eventually_answers(health, lambda status: status == 503)
            assert (await it.http.get("/v1/models")).json()["data"] == []
            assert (await it.http.get(f"/v1/models/{MODEL}")).status_code == 503
            answer = await it.http.post("/v1/chat/completions", json={**CHAT, "stream": False})
            assert answer.json()["choices"][0]["message"]["content"] == "hello"

    asyncio.run(scenario())


def test_stopping_lets_open_streams_finish(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        said = Reply(TEXT, hold=asyncio.Event(), hold_at=4)
        async with deployment(nats_server, redis_server, tmp_path, lambda _: said) as it:
            async with streaming(it) as events:
                it.runtime.stopping.set()
                await eventually_answers(lambda: is_refused(it.url), bool)
                assert said.hold is not None
                said.hold.set()
                await events.read()
            assert events.text() == TEXT
            assert events.data[-1] == "[DONE]"

    asyncio.run(scenario())


def test_a_stop_does_not_wait_for_ever(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        said = Reply(TEXT, hold=asyncio.Event(), hold_at=4)
        async with deployment(
            nats_server, redis_server, tmp_path, lambda _: said, drain_s=0.1
        ) as it:
            async with streaming(it) as events:
                it.runtime.stopping.set()
                await events.read()
            assert events.error_code() == "stopping"
            await eventually(lambda: bool(it.fake.cancels))

    asyncio.run(scenario())


async def is_refused(url: str) -> bool:
    """Whether a new client is turned away."""
    try:
        async with httpx.AsyncClient() as http:
            await http.get(f"{url}/ping")
    except httpx.TransportError:
        return True
    return False
