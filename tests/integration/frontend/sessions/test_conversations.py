"""Conversations, items that are referred to, and what is left of a conversation when it is long."""

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.conversations import Conversation, ConversationItemList

from services.frontend.sessions import conversation_store
from shared.ids import SessionId, TenantId
from shared.wire import messages as m
from shared.wire.sessions import (
    responses_redis_key,
    session_index_redis_key,
    session_mark,
    session_sizes_redis_key,
)
from tests.conftest import Server
from tests.integration.frontend.api.strict import check, events_of
from tests.integration.frontend.api.test_responses import CALL, WEATHER, asked
from tests.integration.frontend.deployment import MODEL, Deployment, Reply
from tests.integration.frontend.sessions.test_stored_responses import create, with_deployment

DEFAULT = TenantId("default")
JSON = {"Content-Type": "application/json"}
Servers = tuple[Server, Server, Path]


@pytest.fixture
def servers(nats_server: Server, redis_server: Server, tmp_path: Path) -> Servers:
    return nats_server, redis_server, tmp_path


def user(text: str) -> Any:
    return {"type": "message", "role": "user", "content": text}


async def listed(it: Deployment, name: str, **query: Any) -> list[Any]:
    answer = await it.http.get(f"/v1/conversations/{name}/items", params={"order": "asc", **query})
    assert answer.status_code == 200, answer.text
    check(ConversationItemList, answer.json())
    items: list[Any] = answer.json()["data"]
    return items


async def assert_odd_is_refused(it: Deployment, one: str) -> None:
    deep = '{"items": [{"role": "user", "content": ' + "[" * 200 + "]" * 200 + "}]}"
    lone, values = r'{"items": [{"role": "user", "content": "\ud800"}]}', "[" * 100_000
    call = '{"items": [{"type": "function_call", "call_id": 7, "name": [], "arguments": {}}]}'
    for body in (deep, lone, values, call, "7", "null", "[]", "", '{"items":', '{"items": NaN}'):
        for path in ("conversations", f"conversations/{one}/items"):
            answer = await it.http.post(f"/v1/{path}", content=body, headers=JSON)
            assert answer.status_code == 400, (path, body[:80], answer.text)
    odd: list[Any] = [7, {}, [], "", [[]], [{"type": {}}], [{"role": "user", "content": 7}]]
    for path in ("responses/compact", "responses/input_tokens"):
        for given in odd:
            answer = await it.http.post(f"/v1/{path}", json={"model": MODEL, "input": given})
            assert answer.status_code == 400, (path, given, answer.text)
    names: list[tuple[Any, int]] = [(7, 400), ([], 400), ({"id": 7}, 400), ("", 404), ("*", 404)]
    for conversation, status in names:
        refused = {"model": MODEL, "input": "Hi", "conversation": conversation}
        answer = await it.http.post("/v1/responses", json=refused)
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]["param"] == "conversation", answer.text
    for query in ("limit=0", "limit=99999999999999999999", "after=%00", "order=up"):
        answer = await it.http.get(f"/v1/conversations/{one}/items?{query}")
        assert answer.status_code == 400, answer.text
    assert not await listed(it, one), "nothing of it was stored"


async def assert_counted(redis: Any, name: str) -> None:
    used = await redis.memory_usage(
        responses_redis_key(DEFAULT, session_mark(SessionId(name))), samples=0
    )
    counted = await redis.hget(session_sizes_redis_key(DEFAULT), name)
    assert 0 < used <= int(counted.split()[0])


def test_a_conversation_is_added_to_read_and_deleted(servers: Servers) -> None:
    async def scenario(it: Deployment, redis: Any) -> None:
        ask = it.openai.conversations
        made = await ask.create(items=[user("Hi")], metadata={"a": "b"})
        assert made.id.startswith("conv_") and made.metadata == {"a": "b"}
        check(Conversation, made.to_dict())
        assert (await ask.retrieve(made.id)).to_dict() == made.to_dict()
        changed = await ask.update(made.id, metadata={"c": "d"})
        assert changed.metadata == {"c": "d"} and changed.created_at == made.created_at
        more: list[Any] = [
            {"type": "message", "role": "assistant",
             "content": [{"type": "output_text", "text": "Yes?"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "r"},
            {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "x"},
            {"type": "custom_tool_call_output", "call_id": "d", "output": "s"},
            {"type": "reasoning", "summary": [],
             "content": [{"type": "reasoning_text", "text": "Hm."}]},
        ]  # fmt: skip
        added = (await ask.items.create(made.id, items=more)).to_dict()
        check(ConversationItemList, added)
        items = await listed(it, made.id)
        assert items[1:] == added["data"] and len({item["id"] for item in items}) == 7
        await assert_counted(redis, made.id)
        prefixes = [item["id"].partition("_")[0] for item in items]
        assert prefixes == ["msg", "msg", "fc", "fco", "ctc", "ctco", "rs"]
        again = [item async for item in ask.items.list(made.id, limit=2, order="asc")]
        assert [item.to_dict() for item in again] == items
        newest = [item.to_dict() async for item in ask.items.list(made.id)]
        assert newest == items[::-1]
        one = await ask.items.retrieve(items[2]["id"], conversation_id=made.id)
        assert one.to_dict() == items[2]
        left = await ask.items.delete(items[2]["id"], conversation_id=made.id)
        assert left.to_dict() == changed.to_dict()
        assert await listed(it, made.id) == items[:2] + items[3:]
        empty = await it.http.get("/v1/conversations/conv_x/items")
        assert empty.status_code == 404
        for gone in (items[2]["id"], "msg_x"):
            with pytest.raises(openai.NotFoundError):
                await ask.items.retrieve(gone, conversation_id=made.id)
            with pytest.raises(openai.NotFoundError):
                await ask.items.delete(gone, conversation_id=made.id)
        await assert_counted(redis, made.id)
        deleted = await ask.delete(made.id)
        assert (deleted.id, deleted.deleted, deleted.object) == (
            made.id, True, "conversation.deleted",
        )  # fmt: skip
        for refused in (
            ask.retrieve(made.id), ask.delete(made.id), ask.update(made.id, metadata={}),
            ask.items.create(made.id, items=[user("x")]), create(it, conversation=made.id),
        ):  # fmt: skip
            with pytest.raises(openai.NotFoundError):
                await refused
        await wrong(it)

    async def wrong(it: Deployment) -> None:
        one = (await it.openai.conversations.create()).id
        for path, body, param in (
            ("", {"metadata": {"a": 7}}, "metadata.a"),
            ("", {"metadata": {"a": "x" * 513}}, "metadata.a"),
            ("", {"metadata": {str(at): "" for at in range(17)}}, "metadata"),
            ("", {"items": [{"role": "robot", "content": "x"}]}, "items[0]"),
            ("", {"items": 7}, "items"),
            ("", {"items": {}}, "items"),
            ("", {"items": ""}, "items"),
            (f"/{one}", {"items": {}}, "items"),
            (f"/{one}", {"items": []}, "items"),
            (f"/{one}/items", {"items": []}, "items"),
            (f"/{one}/items", {"items": {}}, "items"),
            (f"/{one}/items", {}, "items"),
            (f"/{one}/items", {"items": [[]]}, "items[0]"),
            ("", {"items": [{"type": "item_reference", "id": "x"}]}, "items[0].type"),
        ):
            answer = await it.http.post(f"/v1/conversations{path}", json=body)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] == param, answer.text
        await assert_odd_is_refused(it, one)

    with_deployment(scenario, servers)


def test_a_response_is_said_in_a_conversation(servers: Servers) -> None:
    async def scenario(it: Deployment, _: Any) -> None:
        ask = it.openai.conversations
        made = await ask.create(items=[user("I am Ann.")])
        first = await create(it, conversation=made.id, store=False, tools=[WEATHER])
        assert first.conversation.id == made.id == first.session_id
        assert asked(it).endswith("user\nI am Ann.\nuser\nHi\nassistant\n")
        (call,) = first.output
        answer: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        where = {"id": made.id}
        second = await create(it, input=[answer], tools=[WEATHER], conversation=where)
        assert asked(it).endswith(f"user\nHi\nassistant\n{CALL}\ntool\nrain\nassistant\n")
        before, after = (m.unpack_ints(prompt.tokens) for prompt in it.fake.prompts[-2:])
        assert after[: len(before)] == before, "its session's tokens are extended"
        items = await listed(it, made.id)
        kinds = [item["type"] for item in items]
        assert kinds == [
            "message", "message", "function_call", "function_call_output", *kinds[4:]
        ]  # fmt: skip
        assert items[2]["id"] == call.id and items[2]["call_id"] == call.call_id
        assert items[-1]["id"] == second.output[-1].id
        stored: Any = await it.openai.responses.retrieve(second.id)
        assert stored.conversation.id == made.id
        with pytest.raises(openai.BadRequestError) as caught:
            await create(it, conversation=made.id, session_id="fox")
        assert caught.value.param == "session_id"
        await it.openai.responses.delete(second.id)
        assert await listed(it, made.id) == items, "the conversation has its own"

    with_deployment(scenario, servers, lambda _: Reply(CALL))


def test_a_stream_is_said_in_a_conversation(servers: Servers) -> None:
    held: list[asyncio.Event] = []

    def reply(_: m.Prompt) -> Reply:
        return Reply("hello", hold=held.pop() if held else None, hold_at=2)

    async def scenario(it: Deployment, redis: Any) -> None:
        ask = it.openai.conversations
        made = await ask.create(items=[user("I am Ann.")])
        # Not by the official client, which builds its events' models while Redis is waited for.
        body = {"model": MODEL, "input": "Hi", "conversation": made.id, "stream": True}
        seen = events_of((await it.http.post("/v1/responses", json=body)).text)
        assert seen[0]["response"]["conversation"] == {"id": made.id}
        assert seen[-1]["type"] == "response.completed"
        items = await listed(it, made.id)
        said = [item["content"][0]["text"] for item in items]
        assert said == ["I am Ann.", "Hi", "hello"]
        assert items[-1]["id"] == seen[-1]["response"]["output"][0]["id"]
        await assert_counted(redis, made.id)

        gate = asyncio.Event()
        held.append(gate)
        async with it.http.stream("POST", "/v1/responses", json=body) as answer:
            text = answer.aiter_text()
            before = await anext(text)
            while "output_text.delta" not in before:
                before += await anext(text)
            await ask.delete(made.id)
            gate.set()
            seen = events_of(before + "".join([part async for part in text]))
        last = seen[-1]
        assert last["type"] == "response.completed", "what was begun is answered"
        assert last["response"]["store"] is False
        with pytest.raises(openai.NotFoundError):
            await ask.retrieve(made.id)
        for gone in (items[-1]["id"], last["response"]["output"][0]["id"]):
            with pytest.raises(openai.BadRequestError):
                await create(it, input=[{"type": "item_reference", "id": gone}])

    with_deployment(scenario, servers, reply)


def test_items_are_referred_to(servers: Servers) -> None:
    async def scenario(it: Deployment, _: Any) -> None:
        first = await create(it, input=[user("One"), user("Two")])
        inputs = await it.openai.responses.input_items.list(first.id, order="asc")
        refer = [{"type": "item_reference", "id": item.id} for item in inputs.data]
        said = {"id": first.output[0].id}
        await create(it, input=[refer[1], said, user("And?")])
        assert asked(it) == "user\nTwo\nassistant\nhello\nuser\nAnd?\nassistant\n"
        talk = await it.openai.conversations.create(items=[user("Three")])
        (third,) = await listed(it, talk.id)
        await create(it, input=[{"type": "item_reference", "id": third["id"]}, refer[0]])
        assert asked(it) == "user\nThree\nuser\nOne\nassistant\n"
        await it.openai.responses.delete(first.id)
        with pytest.raises(openai.BadRequestError) as caught:
            await create(it, input=[user("x"), refer[0]])
        assert (caught.value.param, caught.value.code) == ("input[1].id", "item_not_found")

    with_deployment(scenario, servers)


async def compacted(it: Deployment, **fields: Any) -> Any:
    """Not by the official client, whose models know no message of the user's in its output."""
    answer = await it.http.post("/v1/responses/compact", json={"model": MODEL, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_it_is_counted_and_made_short(servers: Servers) -> None:
    async def scenario(it: Deployment, _: Any) -> None:
        ask = it.openai.responses
        count: Any = await ask.input_tokens.count(model=MODEL, input="Hi", tools=[WEATHER])
        await create(it, tools=[WEATHER])
        assert count.to_dict() == {
            "object": "response.input_tokens",
            "input_tokens": len(m.unpack_ints(it.fake.prompts[-1].tokens)),
        }
        first = await create(it, input="I am Ann.")
        second = await create(it, input="Who am I?", previous_response_id=first.id)
        more: Any = {"model": MODEL, "input": "And?", "previous_response_id": second.id}
        count = await ask.input_tokens.count(**more)
        assert count.input_tokens == (await ask.create(**more)).usage.input_tokens
        alone = await ask.input_tokens.count(model=MODEL, previous_response_id=second.id)
        assert 0 < alone.input_tokens < count.input_tokens

        said = "user\nI am Ann.\nassistant\nhello\nuser\nWho am I?\nassistant\nhello\n"
        short = await compacted(it, previous_response_id=second.id)
        assert asked(it).startswith(said + "user\nSummarize")
        assert it.fake.submits[-1].session_id is None
        assert short["object"] == "response.compaction" and short["usage"]["output_tokens"] == 6
        kinds = [(item["type"], item.get("role")) for item in short["output"]]
        assert kinds == [("message", "user"), ("message", "user"), ("compaction", None)]
        await create(it, input=[*short["output"], user("And?")])
        assert asked(it) == (
            "user\nI am Ann.\nuser\nWho am I?\nuser\nSummary of the conversation up to here:\n"
            "hello\nuser\nAnd?\nassistant\n"
        )
        again = await compacted(it, input=[*short["output"], user("And?")])
        kinds = [(item["type"], item.get("role")) for item in again["output"]]
        assert kinds == [*[("message", "user")] * 3, ("compaction", None)]
        with pytest.raises(openai.BadRequestError) as caught:
            await ask.compact(model=MODEL, input=[])
        assert caught.value.param == "input"

    with_deployment(scenario, servers)


def test_other_tenants_have_none_of_it(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = servers[2] / "keys.json"
    keys.write_text('[{"key": "a", "tenant": "a"}, {"key": "b", "tenant": "b"}]')
    monkeypatch.setattr(conversation_store, "ITEMS_MAX", 5)

    async def scenario(it: Deployment, redis: Any) -> None:
        a, b = ({"Authorization": f"Bearer {key}"} for key in "ab")
        made = await it.http.post("/v1/conversations", json={"items": [user("x")]}, headers=a)
        path = f"/v1/conversations/{made.json()['id']}"
        items = (await it.http.get(f"{path}/items", headers=a)).json()["data"]
        body = {"model": MODEL, "input": "Hi", "conversation": made.json()["id"]}
        made_in = (await it.http.post("/v1/responses", json=body, headers=a)).json()
        add = {"items": [user("y")]}
        for answer in (
            await it.http.get(path, headers=b),
            await it.http.post(path, json={"metadata": {}}, headers=b),
            await it.http.delete(path, headers=b),
            await it.http.get(f"{path}/items", headers=b),
            await it.http.post(f"{path}/items", json=add, headers=b),
            await it.http.get(f"{path}/items/{items[0]['id']}", headers=b),
            await it.http.delete(f"{path}/items/{items[0]['id']}", headers=b),
            await it.http.post("/v1/responses", json=body, headers=b),
            await it.http.get(f"/v1/responses/{made_in['id']}?stream=true", headers=b),
        ):
            assert answer.status_code == 404, answer.text
        for item_id in (items[0]["id"], made_in["output"][0]["id"]):
            refer = {"model": MODEL, "input": [{"type": "item_reference", "id": item_id}]}
            for headers, status in ((a, 200), (b, 400)):
                answer = await it.http.post("/v1/responses", json=refer, headers=headers)
                assert answer.status_code == status, answer.text
        assert len((await it.http.get(f"{path}/items", headers=a)).json()["data"]) == 3
        full = await it.http.post(f"{path}/items", json={"items": [user("y")] * 3}, headers=a)
        assert full.status_code == 400 and "5 items" in full.text
        body["input"] = [user("z")] * 3
        full = await it.http.post("/v1/responses", json=body, headers=a)
        assert full.json()["conversation"] is None, "it was too long to be added"

        few = await it.http.post("/v1/conversations", json={}, headers=a)
        large = {"items": [user("x" * 50_000)]}
        full = await it.http.post(
            f"/v1/conversations/{few.json()['id']}/items", json=large, headers=a
        )
        assert full.status_code == 503 and full.json()["error"]["code"] == "conversation_not_stored"
        for _ in range(8):
            await it.http.post("/v1/conversations", json={"items": [user("x" * 9000)]}, headers=a)
        sizes = session_sizes_redis_key(TenantId("a"))
        assert int(await redis.hget(sizes, "")) <= 40_000
        assert await redis.zcard(session_index_redis_key(TenantId("a"))) < 6
        assert (await it.http.get(path, headers=a)).status_code == 404, "the oldest leave"

    with_deployment(scenario, servers, api_keys_file=keys, tenant_session_bytes_max=40_000)
