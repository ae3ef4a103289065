"""Deleting a session: what the frontend does, whom it tells, and when it says that it is done."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from services.frontend.api.sessions import deletion
from shared.blocks import unpack_keys
from shared.ids import HostId
from shared.wire import messages as m
from shared.wire.subjects import (
    ADVISORY_INVALIDATE,
    PROMPT_PULL,
    SESSION_DELETE,
)
from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, Deployment, Reply, deployment, eventually

WORDS = "a fox, a crow and a piece of cheese " * 4


def body(**more: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "session_id": "fox",
        "messages": [{"role": "user", "content": WORDS}],
        "max_tokens": 20,
        **more,
    }


async def turn(it: Deployment, **more: Any) -> m.Prompt:
    """One turn of the session, to its end; what the worker pulled."""
    answer = await it.http.post("/v1/chat/completions", json=body(**more))
    assert answer.status_code == 200, answer.text
    return it.fake.prompts[-1]


async def session(it: Deployment) -> int:
    """The status of what is remembered."""
    return (await it.http.get("/v1/sessions/fox")).status_code


async def delete(it: Deployment) -> httpx.Response:
    return await it.http.delete("/v1/sessions/fox")


async def lines(answer: httpx.Response) -> AsyncIterator[Any]:
    """What a stream says."""
    async for line in answer.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def test_who_asks_to_be_forgotten_while_their_turn_runs(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    hold = asyncio.Event()

    async def scenario() -> None:
        async with deployment(
            nats_server, redis_server, tmp_path, lambda _: Reply("hello", hold=hold, hold_at=2)
        ) as it:
            hold.set()
            await turn(it)
            hold.clear()
            more = body(stream=True)
            async with it.http.stream("POST", "/v1/chat/completions", json=more) as answer:
                pieces = lines(answer)
                await anext(pieces)
                assert (await delete(it)).status_code == 200
                pull = m.PromptPull(
                    turns=[m.TurnRef(turn_id=it.fake.submits[-1].turn_id, attempt=1)],
                )
                again = await it.bus.request(PROMPT_PULL, pull, it.fake.submits[-1].frontend_id)
                assert again.prompts[0].is_private, "a worker that starts it now must know"
                assert not it.fake.prompts[-1].is_private
                hold.set()
                said = [piece["choices"][0] async for piece in pieces]
            assert said[-1]["finish_reason"] == "stop"
            assert await session(it) == 404
            assert not (await turn(it)).is_private
            assert await session(it) == 200, "a turn that began afterwards is remembered"

    asyncio.run(scenario())


def test_it_is_done_when_everybody_says_so(
    nats_server: Server,
    redis_server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deletion, "ROUND_S", 0.2)

    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path) as it:
            prompt = await turn(it)
            num_blocks = len(m.unpack_ints(prompt.tokens)) // 64 + 1  # and a partial one
            invalidated: list[m.AdvisoryKey] = []

            async def invalidate(key: m.AdvisoryKey) -> m.AdvisoryState:
                invalidated.append(key)
                return m.AdvisoryState(session_id=key.session_id, state="invalidated")

            await it.bus.serve(ADVISORY_INVALIDATE, invalidate)
            it.fake.is_forgetful = False
            refused = await delete(it)
            assert refused.status_code == 503 and refused.headers["retry-after"]
            assert refused.json()["error"]["code"] == "deletion_unfinished"
            assert "w1" in refused.json()["error"]["message"]
            assert await session(it) == 404, "its record is gone nevertheless"
            assert len(it.fake.forgets) == deletion.NUM_ROUNDS and invalidated

            it.fake.is_forgetful = True
            assert (await delete(it)).status_code == 200
            assert len(unpack_keys(it.fake.forgets[-1].keys)) == num_blocks > 0, "still known"
            assert (await delete(it)).status_code == 404
            assert it.fake.forgets[-1].keys == ""
            it.fake.knows_sessions = True  # its first turn runs
            assert (await delete(it)).status_code == 200

    asyncio.run(scenario())


def test_kvstores_come_last_and_only_those_that_live_are_waited_for(
    nats_server: Server,
    redis_server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deletion, "ROUND_S", 0.2)

    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path) as it:
            await turn(it)
            it.fake.has_kvstore = True
            await eventually(lambda: it.fake.num_reports_with_kvstore > 2)
            assert (await delete(it)).status_code == 503, "its kvstore did not answer"

            order: list[int] = []

            async def drop(message: m.KvDelete) -> m.KvDeleted:
                order.append(len(it.fake.forgets))
                assert message.keys == it.fake.forgets[-1].keys != ""
                return m.KvDeleted(host_id=HostId("h"), num_blocks=3)

            await it.bus.serve(SESSION_DELETE, drop)
            await it.bus.flush()
            num_forgets = len(it.fake.forgets)
            answer = await delete(it)
            assert (answer.status_code, answer.json()["num_blocks"]) == (200, 3)
            assert order == [num_forgets + 1]

            await turn(it)
            it.fake.is_reporting = False
            it.fake.is_forgetful = False
            monkeypatch.setattr(deletion, "ROUND_S", 1.0)
            assert (await delete(it)).status_code == 200, "a worker that is gone is no reason"

    asyncio.run(scenario())


def test_a_live_session_says_nothing_in_redis(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path) as it:
            await turn(it)
            redis: Any = Redis.from_url(redis_server.url)
            await redis.config_set("rdbcompression", "no")
            values = [await redis.dump(key) async for key in redis.scan_iter()]
            assert values and not any(b"crow" in value or b"hello" in value for value in values)
            assert (await delete(it)).status_code == 200
            left = [key async for key in redis.scan_iter()]
            assert [key for key in left if b"fox" in key] == [b"symphony:generation:7:default:fox"]
            assert {key.split(b":")[1] for key in left} == {
                b"generation", b"notes", b"session_sizes", b"tenants", b"tenants_due"
            }  # fmt: skip
            await redis.flushall()
            for number in range(5):
                assert (await it.http.delete(f"/v1/sessions/none-{number}")).status_code == 404
            assert await redis.dbsize() == 2, "deletions of what is not there leave nothing each"
            await redis.aclose()

    asyncio.run(scenario())
