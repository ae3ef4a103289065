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
from services.frontend.sessions import response_store as responses
from services.frontend.sessions.response_store import ResponseStore
from shared.ids import SessionId, TenantId
from shared.wire import messages as m
from shared.wire.sessions import (
    responses_redis_key,
    session_mark,
    session_redis_key,
    session_sizes_redis_key,
)
from tests.conftest import Server
from tests.integration.frontend.api import strict
from tests.integration.frontend.api.test_responses import asked
from tests.integration.frontend.deployment import MODEL, Deployment, Reply, deployment, eventually
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
        assert failed.error.to_dict() == {
            "code": "server_error", "message": "it broke", "reason": "worker_broke",
        }  # fmt: skip
        await assert_counted(redis)
        with pytest.raises(openai.BadRequestError) as caught:
            await create(it, previous_response_id=begun.id)
        assert "not made to its end" in missing(caught.value)
        with pytest.raises(openai.BadRequestError) as caught:
            await create(it, background=True, store=False)
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
        assert lost.error.reason == "frontend_lost"

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


async def events(stream: Any, num: int = 10_000) -> list[dict[str, Any]]:
    """So many of a stream's first events; by default all."""
    seen = []
    async for event in stream:
        seen.append(event.to_dict())
        strict.EVENT.validate_python(seen[-1])
        if len(seen) == num:
            break
    await stream.close()
    return seen


def test_its_stream_is_cut_and_resumed(servers: Servers, hold: asyncio.Event) -> None:
    async def scenario(it: Deployment, redis: Any) -> None:
        ask = it.openai.responses
        begin: Any = {"model": MODEL, "input": "Hi", "background": True, "stream": True}
        begin["extra_body"] = {"session_id": "fox"}
        first = await events(await ask.create(**begin), 4)
        kinds = [event["type"].removeprefix("response.") for event in first]
        assert kinds == ["created", "queued", "in_progress", "output_item.added"]
        response_id = first[0]["response"]["id"]
        await assert_counted(redis)
        asking = asyncio.create_task(
            events(await ask.retrieve(response_id, stream=True, starting_after=1))
        )
        hold.set()
        resumed = await asking
        assert [event["sequence_number"] for event in resumed] == list(range(2, 2 + len(resumed)))
        assert resumed[0] == first[2] and resumed[1] == first[3]
        last = resumed[-1]
        assert last["type"] == "response.completed"
        whole: Any = await ask.retrieve(response_id)
        assert whole.output_text == "hello" and whole.to_dict() == last["response"]
        said = [e["delta"] for e in resumed if e["type"] == "response.output_text.delta"]
        assert "".join(said) == "hello"
        again = await events(await ask.retrieve(response_id, stream=True))
        assert again == [*first[:2], *resumed]
        for after in (last["sequence_number"] - 1, 10_000):
            assert await events(
                await ask.retrieve(response_id, stream=True, starting_after=after)
            ) == [last]
        await assert_counted(redis)
        assert await events(await ask.create(**begin)), "read to its end"

        plain_one = await create(it)
        for path, status, param in (
            (f"{plain_one.id}?stream=true", 400, "stream"),
            (f"{plain_one.id}?starting_after=1", 400, "starting_after"),
            (f"{response_id}?stream=true&starting_after=-1", 400, "starting_after"),
            (f"resp_{'a' * 48}?stream=true", 404, "response_id"),
        ):
            answer = await it.http.get(f"/v1/responses/{path}")
            assert answer.status_code == status, (path, answer.text)
            assert answer.json()["error"]["param"] == param
        before = int(await redis.hget(KEY, ""))
        await ask.delete(response_id)
        left = [name async for name, _ in redis.hscan_iter(KEY)]
        assert not [name for name in left if name.startswith(response_id.encode())]
        assert 0 < int(await redis.hget(KEY, "")) < before

    with_deployment(scenario, servers, lambda _: Reply(hold=hold, hold_at=2))


def test_its_stream_ends_whatever_becomes_of_it(
    servers: Servers, hold: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "BEAT_S", 3600)  # a heartbeat would undo a loss for a minute
    replies = [
        Reply(hold=hold, hold_at=2), Reply(error_at=2), Reply("x" * 200),
        Reply(hold=hold, hold_at=2),
    ]  # fmt: skip
    said: dict[str, Reply] = {}

    def reply(prompt: m.Prompt) -> Reply:
        """On a machine that stalls, a turn may be submitted again."""
        if prompt.turn_id not in said:
            said[prompt.turn_id] = replies.pop(0)
        return said[prompt.turn_id]

    async def scenario(it: Deployment, redis: Any) -> None:
        ask = it.openai.responses
        begin: Any = {"model": MODEL, "input": "Hi", "background": True, "stream": True}
        begin["extra_body"] = {"session_id": "fox"}
        stream = await ask.create(**begin)
        created: Any = await anext(stream)
        cancelled = created.response.id
        assert (await ask.cancel(cancelled)).status == "cancelled"
        for seen in (
            await events(stream),
            await events(await ask.retrieve(cancelled, stream=True)),
        ):
            assert (seen[-1]["type"], seen[-1]["response"]["status"]) == (
                "response.failed", "cancelled",
            )  # fmt: skip
        broken = await events(await ask.create(**begin))
        assert broken[-1]["response"]["error"]["reason"] == "worker_broke"
        response_id = broken[0]["response"]["id"]
        assert await events(await ask.retrieve(response_id, stream=True)) == broken

        with monkeypatch.context() as patched:
            patched.setattr(responses, "EVENTS_BYTES_MAX", 600)
            long = await events(await ask.create(**begin))
        cut = await events(await ask.retrieve(long[0]["response"]["id"], stream=True))
        assert len(cut) < len(long), "there was no room for all of them"
        assert cut[-1]["response"]["output"] == long[-1]["response"]["output"]

        stream = await ask.create(**begin)
        created = await anext(stream)
        await stream.close()
        await redis.hset(KEY, f"{created.response.id}:run", "1700000000")
        lost = await events(await ask.retrieve(created.response.id, stream=True))
        assert lost[-1]["response"]["error"]["reason"] == "frontend_lost"

    with_deployment(scenario, servers, reply)
