"""Responses that are stored: gone on from, read, deleted, forgotten with their session."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from redis.asyncio import Redis

from services.frontend.core.sessions import stored_responses
from services.frontend.sessions import response_store as responses
from shared.ids import SessionId, TenantId
from shared.wire import messages as m
from shared.wire.sessions import (
    responses_redis_key,
    session_index_redis_key,
    session_mark,
    session_redis_key,
    session_sizes_redis_key,
)
from shared.wire.subjects import SESSION_DELETE
from tests.conftest import Server
from tests.integration.frontend.api.test_responses import CALL, WEATHER, asked
from tests.integration.frontend.deployment import (
    EOS,
    MODEL,
    Deployment,
    Reply,
    deployment,
    eventually,
)

DEFAULT = TenantId("default")


def with_deployment(
    scenario: Callable[[Deployment, Any], Awaitable[None]],
    servers: tuple[Server, Server, Path],
    reply: Callable[[m.Prompt], Reply] = lambda _: Reply(),
    **settings: Any,
) -> None:
    async def run() -> None:
        async with Redis.from_url(servers[1].url) as redis:
            await redis.flushall()
            async with deployment(*servers, reply, **settings) as it:
                await scenario(it, redis)

    asyncio.run(run())


@pytest.fixture
def servers(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> tuple[Server, Server, Path]:
    return nats_server, redis_server, tmp_path


async def create(it: Deployment, **fields: Any) -> Any:
    extra = {name: fields.pop(name) for name in ("session_id",) if name in fields}
    return await it.openai.responses.create(
        **{"model": MODEL, "input": "Hi", **fields}, extra_body=extra
    )


def input_id(prefix: str, response_id: str, at: int) -> str:
    return f"{prefix}_{response_id.removeprefix('resp_')}{at:04x}"


def missing(error: openai.BadRequestError) -> str:
    assert error.code == "previous_response_not_found" and error.param == "previous_response_id"
    return error.message


def test_one_is_gone_on_from(servers: tuple[Server, Server, Path]) -> None:
    async def scenario(it: Deployment, _: Any) -> None:
        first = await create(it, instructions="Be kind.")
        assert first.store and first.previous_response_id is None
        second = await create(it, input="And?", previous_response_id=first.id)
        assert second.previous_response_id == first.id and second.id != first.id
        said = "user\nHi\nassistant\nhello\nuser\nAnd?\nassistant\n"
        assert asked(it) == said, "instructions are not carried over"
        async with it.openai.responses.stream(
            model=MODEL, input="So?", previous_response_id=second.id
        ) as events:
            third: Any = await events.get_final_response()
        assert asked(it) == said + "hello\nuser\nSo?\nassistant\n"
        before, after = (m.unpack_ints(prompt.tokens) for prompt in it.fake.prompts[-2:])
        reply = [*b"hello", EOS]
        assert after[: len(before) + len(reply)] == [*before, *reply], "its tokens are extended"
        sessions = {submit.session_id for submit in it.fake.submits}
        assert sessions == {first.session_id} == {third.session_id}

        branch = await create(it, input="No.", previous_response_id=first.id)
        assert asked(it) == "user\nHi\nassistant\nhello\nuser\nNo.\nassistant\n"
        for one in (first, second, branch):
            assert (await it.openai.responses.retrieve(one.id)).to_dict() == one.to_dict()
        assert (await it.openai.responses.retrieve(third.id)).output_text == "hello"

    with_deployment(scenario, servers)


def test_calls_are_answered_by_their_ids_alone(servers: tuple[Server, Server, Path]) -> None:
    async def scenario(it: Deployment, _: Any) -> None:
        first = await create(it, tools=[WEATHER], session_id="fox")
        assert first.session_id == "fox"
        (call,) = first.output
        answer = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        await create(it, input=[answer], tools=[WEATHER], previous_response_id=first.id)
        assert asked(it).endswith(f"{CALL}\ntool\nrain\nassistant\n")
        assert it.fake.submits[-1].session_id == "fox"
        listed = await it.openai.responses.input_items.list(first.id)
        assert [item.to_dict() for item in listed.data] == [
            {
                "id": input_id("msg", first.id, 0), "type": "message", "role": "user",
                "status": "completed", "content": [{"type": "input_text", "text": "Hi"}],
            }
        ]  # fmt: skip

    with_deployment(scenario, servers, lambda _: Reply(CALL))


def test_what_was_asked_comes_in_pages(servers: tuple[Server, Server, Path]) -> None:
    async def scenario(it: Deployment, _: Any) -> None:
        items = [{"role": "user", "content": text} for text in "abcde"]
        one = await create(it, input=items)
        pages = it.openai.responses.input_items
        told = [item async for item in pages.list(one.id, limit=2)]
        contents: list[Any] = [item.to_dict()["content"] for item in told]
        texts = [content[0]["text"] for content in contents]
        assert texts == list("edcba")
        first = await pages.list(one.id, limit=2, order="asc")
        assert first.has_more and [item.id for item in first.data] == [
            input_id("msg", one.id, at) for at in range(2)
        ]
        for query in ("limit=0", "limit=101", "order=up", "after=x"):
            wrong = await it.http.get(f"/v1/responses/{one.id}/input_items?{query}")
            assert wrong.status_code == 400, query
            assert wrong.json()["error"]["param"] == query.partition("=")[0]

    with_deployment(scenario, servers)


def test_what_is_not_stored_is_not_there(servers: tuple[Server, Server, Path]) -> None:
    async def scenario(it: Deployment, redis: Any) -> None:
        one = await create(it, store=False)
        assert (one.store, one.session_id) == (False, None)
        assert it.fake.submits[-1].session_id is None
        named = await create(it, store=False, session_id="fox")
        for each in (one, named):
            with pytest.raises(openai.BadRequestError) as caught:
                await create(it, previous_response_id=each.id)
            assert repr(each.id) in missing(caught.value)
            with pytest.raises(openai.NotFoundError):
                await it.openai.responses.retrieve(each.id)
            with pytest.raises(openai.NotFoundError):
                await it.openai.responses.delete(each.id)
        assert not [key async for key in redis.scan_iter("symphony:responses:*")]

        kept = await create(it, session_id="fox")
        key = responses_redis_key(DEFAULT, session_mark(SessionId("fox")))
        await redis.hset(key, f"{kept.id}:items", b'{"input": {}}')
        with pytest.raises(openai.BadRequestError):
            await create(it, previous_response_id=kept.id)
        with pytest.raises(openai.NotFoundError):
            await it.openai.responses.retrieve(kept.id)
        with pytest.raises(openai.NotFoundError):
            await it.openai.responses.delete(f"{kept.id}:after")

    with_deployment(scenario, servers)


def test_a_session_is_one_and_is_named_as_it_is(servers: tuple[Server, Server, Path]) -> None:
    async def scenario(it: Deployment, _: Any) -> None:
        fox = await create(it, session_id="fox")
        await create(it, previous_response_id=fox.id, session_id="fox")
        with pytest.raises(openai.BadRequestError) as caught:
            await create(it, previous_response_id=fox.id, session_id="crow")
        assert caught.value.param == "session_id" and "'fox'" in caught.value.message

    with_deployment(scenario, servers)


def test_deleting(servers: tuple[Server, Server, Path]) -> None:
    async def scenario(it: Deployment, redis: Any) -> None:
        deleted: list[m.KvDelete] = []

        async def on_delete(delete: m.KvDelete) -> m.KvDeleted:
            deleted.append(delete)
            raise AssertionError("there is no kvstore")

        await it.bus.serve(SESSION_DELETE, on_delete)
        first = await create(it)
        second = await create(it, previous_response_id=first.id)
        third = await create(it, previous_response_id=second.id)
        await it.openai.responses.delete(second.id)
        with pytest.raises(openai.BadRequestError) as caught:
            await create(it, previous_response_id=third.id)
        assert repr(second.id) in missing(caught.value) and repr(third.id) in missing(caught.value)
        await create(it, previous_response_id=first.id, store=False)
        await it.openai.responses.delete(first.id)
        assert not it.fake.forgets
        await it.openai.responses.delete(third.id)
        assert [forget.session_id for forget in it.fake.forgets] == [first.session_id]
        left = [key async for key in redis.scan_iter("symphony:*")]
        kinds = {key.split(b":")[1] for key in left}
        note = {b"generation", b"notes", b"session_sizes", b"tenants", b"tenants_due"}
        assert kinds == note, "that it was deleted"

        named = await create(it, session_id="fox")
        await it.openai.responses.delete(named.id)
        assert (await it.http.get("/v1/sessions/fox")).status_code == 200, "it is its namer's"
        named = await create(it, session_id="fox")
        assert (await it.http.delete("/v1/sessions/fox")).status_code == 200
        with pytest.raises(openai.NotFoundError):
            await it.openai.responses.retrieve(named.id)

    with_deployment(scenario, servers)


def test_a_deleted_session_keeps_no_response_of_a_turn_that_ran(
    servers: tuple[Server, Server, Path],
) -> None:
    hold = asyncio.Event()

    async def scenario(it: Deployment, _: Any) -> None:
        asking = asyncio.create_task(create(it, session_id="fox"))
        await eventually(lambda: bool(it.fake.prompts))
        await it.http.delete("/v1/sessions/fox")
        hold.set()
        told = await asking
        assert told.store is False
        with pytest.raises(openai.NotFoundError):
            await it.openai.responses.retrieve(told.id)

    with_deployment(scenario, servers, lambda _: Reply(hold=hold, hold_at=2))


def test_what_does_not_fit_is_not_stored_and_says_so(
    servers: tuple[Server, Server, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(it: Deployment, redis: Any) -> None:
        small = await create(it, session_id="fox")
        session = session_redis_key(DEFAULT, SessionId("fox"))
        sizes, index = session_sizes_redis_key(DEFAULT), session_index_redis_key(DEFAULT)
        key = responses_redis_key(DEFAULT, session_mark(SessionId("fox")))
        for _ in range(20):  # one session's, until there is no room
            told = await create(it, previous_response_id=small.id)
            size = int((await redis.hget(sizes, "fox")).split()[0])
            assert size == int(await redis.hget(sizes, "")) <= 12_000
        assert not told.store
        assert await redis.zcard(index) == 1
        crow = await create(it, session_id="crow")
        assert crow.store, "the one of the least recent use leaves"
        assert not await redis.exists(key, session) and await redis.zrange(index, 0, -1) == [
            b"crow"
        ]

    with_deployment(scenario, servers, tenant_session_bytes_max=12_000)
    monkeypatch.setattr(responses, "RESPONSE_BYTES_MAX", 600)

    async def too_large(it: Deployment, _: Any) -> None:
        assert not (await create(it, input="x" * 400)).store

    with_deployment(too_large, servers)


def test_a_chain_has_an_end(
    servers: tuple[Server, Server, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "CHAIN_MAX", 2)

    async def scenario(it: Deployment, _: Any) -> None:
        told = await create(it)
        for _step in range(2):
            told = await create(it, previous_response_id=told.id)
        with pytest.raises(openai.BadRequestError) as caught:
            await create(it, previous_response_id=told.id)
        assert "2 responses" in caught.value.message

    with_deployment(scenario, servers)
    monkeypatch.undo()
    monkeypatch.setattr(responses, "CHAIN_BYTES_MAX", 700)

    async def large(it: Deployment, _: Any) -> None:
        told = await create(it, input="x" * 300)
        told = await create(it, previous_response_id=told.id)
        with pytest.raises(openai.BadRequestError, match="700 bytes"):
            await create(it, previous_response_id=told.id)

    with_deployment(large, servers)
    monkeypatch.undo()
    monkeypatch.setattr(responses, "ITEMS_MAX", 3)

    async def many(it: Deployment, _: Any) -> None:
        told = await create(it)
        told = await create(it, previous_response_id=told.id)
        with pytest.raises(openai.BadRequestError, match="3 items"):
            await create(it, previous_response_id=told.id)

    with_deployment(many, servers)


def test_other_tenants_have_none_of_it(servers: tuple[Server, Server, Path]) -> None:
    assert stored_responses.mark_in("resp_1") is None
    keys = servers[2] / "keys.json"
    keys.write_text('[{"key": "a", "tenant": "a"}, {"key": "b", "tenant": "b"}]')

    async def scenario(it: Deployment, _: Any) -> None:
        a, b = ({"Authorization": f"Bearer {key}"} for key in "ab")
        body = {"model": MODEL, "input": "Hi"}
        told = (await it.http.post("/v1/responses", json=body, headers=a)).json()
        path = f"/v1/responses/{told['id']}"
        answer = await it.http.get(path, headers=b)
        assert answer.status_code == 404
        assert answer.json()["error"]["message"] == f"Response with id '{told['id']}' not found."
        assert (await it.http.get(f"{path}/input_items", headers=b)).status_code == 404
        assert (await it.http.delete(path, headers=b)).status_code == 404
        more = {**body, "previous_response_id": told["id"]}
        assert (await it.http.post("/v1/responses", json=more, headers=b)).status_code == 400
        assert (await it.http.post("/v1/responses", json=more, headers=a)).status_code == 200

    with_deployment(scenario, servers, api_keys_file=keys)


def test_what_cannot_be_written_is_refused_before_anything_runs(
    servers: tuple[Server, Server, Path],
) -> None:
    huge = 10**30
    tool = {**WEATHER, "parameters": {"maximum": huge}}

    async def scenario(it: Deployment, _: Any) -> None:
        for fields, param in (
            ({"metadata": {"a": huge}}, "metadata"),
            ({"tools": [tool]}, "tools"),
            ({"text": {"verbosity": huge}}, "text"),
        ):
            for stream in (False, True):
                body = {"model": MODEL, "input": "Hi", "stream": stream, **fields}
                answer = await it.http.post("/v1/responses", json=body)
                assert answer.status_code == 400, (fields, answer.text)
                assert answer.json()["error"]["param"] == param
        assert not it.fake.prompts

    with_deployment(scenario, servers)


def test_of_items_only_what_is_read_is_kept(servers: tuple[Server, Server, Path]) -> None:
    odd = {"x": [{}] * 1000, "y": 10**30}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    answer = {
        "type": "function_call_output",
        "call_id": "c",
        "output": [{"type": "text", "text": "r"}],
    }
    part = {"type": "input_text", "text": "Hi", **odd}
    items = [{"role": "user", "content": [part, part], **odd}, call | odd, answer | odd]

    async def scenario(it: Deployment, redis: Any) -> None:
        first = (await it.http.post("/v1/responses", json={"model": MODEL, "input": items})).json()
        assert first["store"] is True
        listed = await it.openai.responses.input_items.list(first["id"], order="asc")
        assert [item.to_dict() for item in listed.data] == [
            {
                "id": input_id("msg", first["id"], 0), "type": "message", "role": "user",
                "status": "completed", "content": [{"type": "input_text", "text": "HiHi"}],
            },
            {"id": input_id("fc", first["id"], 1), **call, "status": "completed"},
            {"id": input_id("fco", first["id"], 2), **answer, "output": "r", "status": "completed"},
        ]  # fmt: skip
        (key,) = [key async for key in redis.scan_iter("symphony:responses:*")]
        assert int(await redis.hget(key, "")) < 2500
        await create(it, input="And?", previous_response_id=first["id"])
        assert asked(it).startswith("user\nHiHi\nassistant\n")

    with_deployment(scenario, servers)


def test_what_a_response_follows_may_go_while_it_is_made(
    servers: tuple[Server, Server, Path],
) -> None:
    hold = asyncio.Event()

    async def scenario(it: Deployment, _: Any) -> None:
        hold.set()
        first = await create(it, session_id="fox")
        hold.clear()
        asking = asyncio.create_task(create(it, previous_response_id=first.id))
        await eventually(lambda: len(it.fake.prompts) == 2)
        await it.openai.responses.delete(first.id)
        hold.set()
        assert (await asking).store is False

    with_deployment(scenario, servers, lambda _: Reply(hold=hold, hold_at=2))
