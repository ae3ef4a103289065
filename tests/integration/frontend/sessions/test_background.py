"""Responses that are made while nobody waits for them: asked for by id, ended, deleted, lost."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import openai
import pytest
from redis.asyncio import Redis

from services.frontend.api.responses import background as making
from services.frontend.core.sessions.stored_responses import CANCELLED, as_shown, decode_stored
from services.frontend.sessions import background
from services.frontend.sessions.response_store import ResponseStore
from shared.ids import SessionId, TenantId
from shared.wire.sessions import (
    responses_redis_key,
    session_mark,
    session_redis_key,
    session_sizes_redis_key,
)
from tests.conftest import Server
from tests.integration.frontend.api.test_responses import asked
from tests.integration.frontend.deployment import Deployment, Reply, deployment, eventually
from tests.integration.frontend.sessions.test_stored_responses import (
    create,
    missing,
    with_deployment,
)

Servers = tuple[Server, Server, Path]
DEFAULT = TenantId("default")
FOX = SessionId("fox")
KEY = responses_redis_key(DEFAULT, session_mark(FOX))
RECORD_KEY = session_redis_key(DEFAULT, FOX)


@pytest.fixture
def servers(nats_server: Server, redis_server: Server, tmp_path: Path) -> Servers:
    return nats_server, redis_server, tmp_path


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Of the reply's third token."""
    monkeypatch.setattr(background, "BEAT_S", 0.05)
    monkeypatch.setattr(making, "PAUSE_S", 0.05)
    return asyncio.Event()


async def begin(it: Deployment, **fields: Any) -> Any:
    begun = await create(it, background=True, session_id="fox", **fields)
    assert (begun.status, begun.background, begun.output) == ("queued", True, [])
    return begun


async def until(it: Deployment, response_id: str, *statuses: str) -> Any:
    async with asyncio.timeout(20):
        while True:
            with suppress(openai.InternalServerError):
                now: Any = await it.openai.responses.retrieve(response_id)
                if now.status in statuses:
                    return now
                assert now.status == "in_progress", now
            await asyncio.sleep(0.02)


async def assert_counted(redis: Any) -> None:
    """What the session has in Redis is counted, at what Redis needs for it or more."""
    used = [await redis.memory_usage(key, samples=0) or 0 for key in (KEY, RECORD_KEY)]
    counted = await redis.hget(session_sizes_redis_key(DEFAULT), "fox")
    assert 0 < sum(used) <= int(counted.split()[0])


def test_it_is_asked_for_by_its_id(servers: Servers, hold: asyncio.Event) -> None:
    async def scenario(it: Deployment, redis: Any) -> None:
        ask = it.openai.responses
        begun = await begin(it)
        now: Any = await ask.retrieve(begun.id)
        assert (now.status, now.usage, now.output) == ("in_progress", None, [])
        assert len((await ask.input_items.list(begun.id)).data) == 1
        await assert_counted(redis)
        with pytest.raises(openai.BadRequestError) as caught:
            await create(it, previous_response_id=begun.id)
        assert "is not there" in missing(caught.value)
        hold.set()
        made = await until(it, begun.id, "completed")
        assert (made.output_text, made.background, made.id) == ("hello", True, begun.id)
        assert made.usage.output_tokens == 6
        await assert_counted(redis)
        await create(it, input="And?", previous_response_id=begun.id)
        assert asked(it) == "user\nHi\nassistant\nhello\nuser\nAnd?\nassistant\n"
        assert (await ask.cancel(begun.id)).status == "completed", "it was over"

    with_deployment(scenario, servers, lambda _: Reply(hold=hold, hold_at=2))


def test_it_is_ended(servers: Servers, hold: asyncio.Event) -> None:
    async def scenario(it: Deployment, redis: Any) -> None:
        ask = it.openai.responses
        begun = await begin(it)
        for _ in range(2):
            assert (await ask.cancel(begun.id)).status == "cancelled"
        await eventually(lambda: len(it.fake.cancels) == 1)
        elsewhere = await begin(it)
        await redis.hset(KEY, f"{elsewhere.id}:run", CANCELLED)
        await eventually(lambda: len(it.fake.cancels) == 2)
        deleted = await begin(it)
        await ask.delete(deleted.id)
        await eventually(lambda: len(it.fake.cancels) == 3)
        deleted = await begin(it)
        await it.http.delete("/v1/sessions/fox")
        await eventually(lambda: len(it.fake.cancels) == 4)
        hold.set()
        with pytest.raises(openai.NotFoundError):
            await ask.retrieve(deleted.id)
        with pytest.raises(openai.NotFoundError):
            await ask.cancel(deleted.id)
        whole = await create(it)
        with pytest.raises(openai.BadRequestError, match="synchronous"):
            await ask.cancel(whole.id)

    with_deployment(scenario, servers, lambda _: Reply(hold=hold, hold_at=2))


def test_it_fails(servers: Servers, hold: asyncio.Event) -> None:
    async def scenario(it: Deployment, redis: Any) -> None:
        begun = await begin(it)
        failed = await until(it, begun.id, "failed")
        assert (failed.error.code, failed.error.message) == ("worker_broke", "it broke")
        await assert_counted(redis)
        with pytest.raises(openai.BadRequestError) as caught:
            await create(it, previous_response_id=begun.id)
        assert "not made to its end" in missing(caught.value)
        for refused in ({"store": False}, {"stream": True}):
            with pytest.raises(openai.BadRequestError) as caught:
                await create(it, background=True, **refused)
            assert caught.value.param == "background"

    with_deployment(scenario, servers, lambda _: Reply(error_at=1))


def test_its_frontend_is_gone(
    servers: Servers, hold: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "BEAT_S", 3600)

    async def scenario(it: Deployment, redis: Any) -> None:
        begun = await begin(it)
        await redis.hset(KEY, f"{begun.id}:run", "1700000000")
        lost = await until(it, begun.id, "failed")
        assert lost.error.code == "frontend_lost"

    with_deployment(scenario, servers, lambda _: Reply(hold=hold, hold_at=2))


def test_its_frontend_stops(servers: Servers, hold: asyncio.Event) -> None:
    async def run() -> None:
        async with Redis.from_url(servers[1].url) as redis:
            async with deployment(
                *servers, lambda _: Reply(hold=hold, hold_at=2), drain_s=0.2
            ) as it:
                begun = await begin(it)
            name = begun.id.encode()
            fields = (name, name + b":items", name + b":run")
            data, items, word = cast(list[bytes], await redis.hmget(KEY, list(fields)))
            stored = decode_stored(data, items)
            assert stored is not None and as_shown(stored, word, 0.0).response["status"] == "failed"

    asyncio.run(run())


def test_redis_is_away_when_it_is_there(
    servers: Servers, hold: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, puts = ResponseStore.put, []

    async def noted(*arguments: Any) -> bool:
        puts.append(arguments[-1])
        return await put(*arguments)

    monkeypatch.setattr(ResponseStore, "put", noted)

    async def scenario(it: Deployment, _: Any) -> None:
        begun = await begin(it)
        servers[1].kill()
        hold.set()
        await eventually(lambda: puts.count("rest") > 1)
        await asyncio.to_thread(servers[1].start)
        assert (await until(it, begun.id, "completed")).output_text == "hello"

    with_deployment(scenario, servers, lambda _: Reply(hold=hold, hold_at=2))
