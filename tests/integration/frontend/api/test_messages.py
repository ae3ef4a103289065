"""`/v1/messages`: whole, streamed, with tools and with a form; its errors, whoever raised them."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from shared.wire import messages as m
from shared.wire.grammar import byte_tokenizer, flaw_of
from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, MODEL_LEN, Deployment, Reply, deployment

PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
JSON = {"Content-Type": "application/json"}
HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
ASKED: dict[str, Any] = {"model": MODEL, "messages": HI, "max_tokens": 100}
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "How it is there",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    "cache_control": {"type": "ephemeral"},
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'


def with_deployment(
    scenario: Callable[[Deployment], Awaitable[None]], reply: Reply, *servers: Any, **settings: Any
) -> None:
    nats_server, redis_server, folder = servers

    async def run() -> None:
        async with deployment(nats_server, redis_server, folder, lambda _: reply, **settings) as it:
            await scenario(it)

    asyncio.run(run())


def prompt(it: Deployment, at: int = -1) -> str:
    return bytes(t for t in m.unpack_ints(it.fake.prompts[at].tokens) if t < 256).decode()


async def ask(it: Deployment, **fields: Any) -> dict[str, Any]:
    answer = await it.http.post(PATH, json=ASKED | fields)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def stream(it: Deployment, **fields: Any) -> list[dict[str, Any]]:
    """Events; each is named as its data is, and the name comes first."""
    answer = await it.http.post(PATH, json=ASKED | {"stream": True} | fields)
    assert answer.status_code == 200, answer.text
    assert "[DONE]" not in answer.text
    events = []
    *parts, end = answer.text.split("\n\n")
    assert not end
    for part in parts:
        name, data = part.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def put_together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of events; they come in an order that makes sense."""
    first, *rest, delta, last = events
    assert (first["type"], delta["type"], last) == (
        "message_start",
        "message_delta",
        {"type": "message_stop"},
    )
    message: dict[str, Any] = first["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    written, is_open = "", False
    for event in rest:
        if event["type"] == "content_block_start":
            assert not is_open and event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
            written, is_open = "", True
            continue
        assert is_open and event["index"] == len(message["content"]) - 1
        block = message["content"][-1]
        if event["type"] == "content_block_stop":
            is_open = False
            if block["type"] == "tool_use":
                block["input"] = json.loads(written)
            else:
                block["text"] = written
            continue
        kind = "text" if block["type"] == "text" else "partial_json"
        assert event["delta"]["type"] == {"text": "text_delta"}.get(kind, "input_json_delta")
        written += event["delta"][kind]
    assert not is_open
    message |= delta["delta"]
    message["usage"] = delta["usage"]
    return message


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    blocks = [
        {name: value for name, value in block.items() if name != "id"}
        for block in message["content"]
    ]
    return message | {"id": "", "content": blocks}


def test_a_message(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def scenario(it: Deployment) -> None:
        said = await ask(it, system="Be kind.", metadata={"user_id": "u"})
        assert said.pop("id").startswith("msg_")
        num = len(m.unpack_ints(it.fake.prompts[-1].tokens))
        usage = {
            "input_tokens": num - 3,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3,
            "output_tokens": 6,
        }
        assert said == {
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": [{"type": "text", "text": "hello"}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": usage,
        }
        assert prompt(it) == "system\nBe kind.\nuser\nHi\nassistant\n"

        cut = await ask(it, max_tokens=2)
        assert (cut["content"][0]["text"], cut["stop_reason"]) == ("he", "max_tokens")
        stopped = await ask(it, stop_sequences=["zz", "ll"])
        assert (stopped["content"][0]["text"], stopped["stop_reason"]) == ("he", "stop_sequence")
        assert stopped["stop_sequence"] == "ll"
        nothing = await ask(it, stop_sequences=["h"])
        assert (nothing["content"], nothing["stop_sequence"]) == ([], "h")
        prefilled = [*HI, {"role": "assistant", "content": "well, "}]
        await ask(it, messages=prefilled)
        assert prompt(it).endswith("assistant\nwell, ")

        sampled = {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "seed": 1}
        await ask(it, **sampled)
        sampling = it.fake.prompts[-1].sampling
        assert {name: getattr(sampling, name) for name in sampled} == sampled

    with_deployment(scenario, Reply("hello"), nats_server, redis_server, tmp_path)


def test_events_make_the_same_message(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario(it: Deployment) -> None:
        cases: list[dict[str, Any]] = [
            {},
            {"max_tokens": 2},
            {"stop_sequences": ["me"]},
            {"stop_sequences": ["L"]},
            {"tools": [WEATHER]},
            {"tools": [WEATHER], "tool_choice": {"type": "none"}},
        ]
        for fields in cases:
            events = await stream(it, **fields)
            made = put_together(events)
            assert without_ids(made) == without_ids(await ask(it, **fields)), fields
            assert made["usage"]["cache_read_input_tokens"] == 3
            assert events[0]["message"]["usage"].keys() == made["usage"].keys()
        kinds = [event["type"] for event in await stream(it, tools=[WEATHER])]
        assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3

    text = f"Let me see. {CALL} There."
    with_deployment(scenario, Reply(text), nats_server, redis_server, tmp_path)


def test_calls_and_their_answers(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def scenario(it: Deployment) -> None:
        fields = {"tools": [WEATHER], "session_id": "s"}
        first = await ask(it, **fields)
        (call,) = first["content"]
        assert (call["type"], call["name"]) == ("tool_use", "weather")
        assert call["input"] == {"city": "Oslo"} and first["stop_reason"] == "tool_use"
        assert '"description": "How it is there"' in prompt(it)
        assert "cache_control" not in prompt(it)

        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "rain"}
        asked = {"role": "user", "content": [{"type": "text", "text": "So?"}, result]}
        given = [*HI, {"role": "assistant", "content": first["content"]}, asked]
        await ask(it, messages=given, **fields)
        before, after = (m.unpack_ints(prompt.tokens) for prompt in it.fake.prompts)
        said = [*before, *CALL.encode()]
        assert after[: len(said)] == said, "the session goes on"
        assert it.fake.prompts[1].num_history >= len(said) - 1
        assert prompt(it).endswith("\ntool\nrain\nuser\nSo?\nassistant\n")

        for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
            await ask(it, tools=[WEATHER], tool_choice=choice)
            grammar = it.fake.prompts[-1].sampling.grammar
            assert grammar and not flaw_of(grammar, byte_tokenizer())
        for kind in ("auto", "none"):
            await ask(it, tools=[WEATHER], tool_choice={"type": kind})
            assert not it.fake.prompts[-1].sampling.grammar

    with_deployment(scenario, Reply(CALL), nats_server, redis_server, tmp_path)


def test_a_second_turn_extends_the_session(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario(it: Deployment) -> None:
        headers = {"X-Session-Id": "s"}
        first = (await it.http.post(PATH, json=ASKED, headers=headers)).json()
        given = [*HI, {"role": "assistant", "content": first["content"]}, *HI]
        answer = await it.http.post(PATH, json=ASKED | {"messages": given}, headers=headers)
        assert answer.status_code == 200, answer.text
        before, after = (m.unpack_ints(prompt.tokens) for prompt in it.fake.prompts)
        assert after[: len(before) + 5] == [*before, *b"hello"]
        assert it.fake.prompts[1].num_history >= len(before) + 4
        assert (await it.http.get("/v1/sessions/s")).json()["num_turns"] == 2

    with_deployment(scenario, Reply("hello"), nats_server, redis_server, tmp_path)


def test_one_call_of_several(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def scenario(it: Deployment) -> None:
        asked: dict[str, Any] = {"tools": [WEATHER], "max_tokens": 200}
        assert len((await ask(it, **asked))["content"]) == 2
        for kind in ("auto", "any"):
            choice = {"type": kind, "disable_parallel_tool_use": True}
            assert len((await ask(it, tool_choice=choice, **asked))["content"]) == 1

    with_deployment(scenario, Reply(CALL + CALL), nats_server, redis_server, tmp_path)


def test_a_call_that_is_cut_off(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def scenario(it: Deployment) -> None:
        cut = await ask(it, tools=[WEATHER], max_tokens=CALL.index("slo"))
        (call,) = cut["content"]
        assert (cut["stop_reason"], call["name"], call["input"]) == ("max_tokens", "weather", {})
        events = await stream(it, tools=[WEATHER], max_tokens=CALL.index("slo"))
        written = [e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta"]
        assert "".join(written) == '{"city": "O'
        assert events[-2]["delta"]["stop_reason"] == "max_tokens"

        stopped = await ask(it, tools=[WEATHER], stop_sequences=["slo"])
        assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "slo")
        result = {"type": "tool_result", "tool_use_id": call["id"], "is_error": True}
        given = [
            *HI,
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ]
        await ask(it, tools=[WEATHER], messages=given)
        assert prompt(it).endswith("\ntool\nError: \nassistant\n")

    with_deployment(scenario, Reply(CALL), nats_server, redis_server, tmp_path)


def test_a_message_has_the_form_that_is_asked_for(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario(it: Deployment) -> None:
        schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
        form = {"type": "json_schema", "schema": schema}
        for fields in ({"output_config": {"format": form}}, {"output_format": form}):
            assert (await ask(it, **fields))["content"][0]["text"] == '{"x": 7}'
            grammar = it.fake.prompts[-1].sampling.grammar
            assert '"x"' in grammar and not flaw_of(grammar, byte_tokenizer())

    with_deployment(scenario, Reply('{"x": 7}'), nats_server, redis_server, tmp_path)


def test_tokens_are_counted_as_they_are_used(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario(it: Deployment) -> None:
        cases: list[dict[str, Any]] = [
            {},
            {"system": "Be kind."},
            {"tools": [WEATHER]},
            {"messages": [*HI, {"role": "assistant", "content": "well"}]},
        ]
        for fields in cases:
            asked = {"model": MODEL, "messages": HI} | fields
            counted = await it.http.post(COUNT, json=asked)
            usage = (await ask(it, **fields))["usage"]
            num = usage["input_tokens"] + usage["cache_read_input_tokens"]
            assert counted.json() == {"input_tokens": num}, fields
        assert len(it.fake.prompts) == len(cases), "nothing is generated to count"
        long = [{"role": "user", "content": "x" * 100_000}]
        counted = await it.http.post(COUNT, json=ASKED | {"messages": long})
        assert counted.json()["input_tokens"] > 100_000, "more than fits the model is a count too"
        wrong = await it.http.post(COUNT, json=ASKED | {"tool_choice": {"type": "any"}})
        assert wrong.json()["error"]["param"] == "tool_choice"

    with_deployment(scenario, Reply(), nats_server, redis_server, tmp_path)


FORM = {"type": "json_schema", "schema": {"not": {}}}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": ["Hi"]}, "messages[0]"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]},
     "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": "Hi" * 1000}]}, "messages"),
    ({"system": 7}, "system"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "9"}, "max_tokens"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"stop": "x"}, "stop"),
    ({"thinking": {"type": 7}}, "thinking.type"),
    ({"thinking": True}, "thinking"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
    ({"output_config": {"format": 7}}, "output_config.format"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
    ({"output_config": {"format": FORM}}, "output_config.format"),
    ({"output_config": {"effort": 7}}, "output_config.effort"),
    ({"thread": {"type": "resume"}}, "thread.type"),
    ({"output_format": FORM}, "output_format"),
    ({"output_format": FORM, "output_config": {"format": FORM}}, "output_format"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": ["custom"]}]}, "tools[0].type"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [{"name": "f", "input_schema": "{}"}]}, "tools[0].input_schema"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
    ({"tools": [WEATHER, WEATHER]}, "tools"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "sometimes"}}, "tool_choice.type"),
    ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
]  # fmt: skip


def test_what_is_wrong_is_named(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def scenario(it: Deployment) -> None:
        for fields, param in BAD:
            answer = await it.http.post(PATH, json=ASKED | fields)
            assert answer.status_code == 400, (fields, answer.text)
            told = answer.json()
            assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
            assert told["error"]["param"] == param, (fields, answer.text)
            named = told["error"]["message"]
            assert named.startswith(param) or "context length" in named, (fields, named)

    with_deployment(scenario, Reply(), nats_server, redis_server, tmp_path)


def test_what_only_advises_refuses_nothing(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    """As Claude Code asks, with the limits and levels of other models."""
    ephemeral = {"cache_control": {"type": "ephemeral"}}
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    fields: dict[str, Any] = {
        "max_tokens": 32_000,
        "system": [{"type": "text", "text": "Be kind.", **ephemeral}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", **ephemeral}]}],
        "tools": [WEATHER | {"eager_input_streaming": True, "defer_loading": False}],
        "thinking": {"type": "adaptive", "display": "summarized"},
        "output_config": {"effort": "xhigh", "task_budget": {"type": "tokens", "total": 9}},
        "context_management": edits,
        "thread": {"type": "create"},
        "metadata": {"user_id": "u"},
        "betas": ["claude-code-20250219"],
    }

    async def scenario(it: Deployment) -> None:
        said = await ask(it, **fields)
        num_prompt = len(m.unpack_ints(it.fake.prompts[-1].tokens))
        assert it.fake.prompts[-1].sampling.max_tokens == MODEL_LEN - num_prompt
        assert said["context_management"] == {"applied_edits": []}
        *_, delta, _ = await stream(it, **fields)
        assert delta["context_management"] == {"applied_edits": []}
        for deep in ({"output_config": {"effort": "utmost"}}, {"thinking": {"type": "deep"}}):
            assert "context_management" not in await ask(it, **deep)
        lost = {"type": "continue", "previous_message_id": said["id"]}
        answer = await it.http.post(PATH, json=ASKED | {"thread": lost})
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (404, "not_found_error")
        assert error["details"] == {"error_code": "thread_not_found"}, "clients send all of it then"
        chat = {"model": MODEL, "messages": HI, "max_completion_tokens": 32_000}
        advices: tuple[dict[str, Any], ...] = (
            {"reasoning_effort": "utmost"}, {"verbosity": "low"}, {"reasoning": {"effort": "max"}},
            {"thinking": {"type": "enabled"}}, {"enable_thinking": True}, {"prediction": {}},
        )  # fmt: skip
        for advice in advices:
            answer = await it.http.post("/v1/chat/completions", json=chat | advice)
            assert answer.status_code == 200, (advice, answer.text)
        given = {"input": "Hi", "max_output_tokens": 32_000, "text": {"verbosity": "utmost"}}
        response = {"model": MODEL, "reasoning": {"effort": "utmost"}, **given}
        answer = await it.http.post("/v1/responses", json=response)
        assert answer.status_code == 200, answer.text
        text = {"model": MODEL, "prompt": "Hi", "max_tokens": 32_000}
        assert (await it.http.post("/v1/completions", json=text)).status_code == 200
        assert it.fake.prompts[-1].sampling.max_tokens == MODEL_LEN - len("Hi")
        answer = await it.http.post("/v1/completions", json=text | {"prompt": "Hi" * MODEL_LEN})
        assert answer.json()["error"]["param"] == "prompt", answer.text

    with_deployment(scenario, Reply(), nats_server, redis_server, tmp_path)


async def check_shape(
    it: Deployment, method: str, path: str, status: int, kind: str, **how: Any
) -> None:
    answer = await it.http.request(method, path, **how)
    assert answer.status_code == status, (path, answer.text)
    told = answer.json()
    assert told.keys() == {"type", "error", "request_id"}, told
    assert (told["type"], told["error"]["type"]) == ("error", kind)
    assert told["error"].keys() == {"type", "message", "param", "code"}
    assert told["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


def test_errors_have_anthropic_s_shape_whoever_raised_them(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    entries = [
        {"key": "k", "limits": {"turns": 0, "waiting_tokens": 1}},
        {"key": "m", "tenant": "m", "scopes": ["metrics"]},
    ]
    keys.write_text(json.dumps(entries))

    async def scenario(it: Deployment) -> None:
        wrong = "invalid_request_error"
        for path in (PATH, COUNT):
            await check_shape(it, "POST", path, 401, "authentication_error", json=ASKED)
            other = {"X-Api-Key": "m"}
            await check_shape(it, "POST", path, 403, "permission_error", json=ASKED, headers=other)
            it.http.headers["X-Api-Key"] = "k"
            no_model = ASKED | {"model": "no"}
            await check_shape(it, "POST", path, 404, "not_found_error", json=no_model)
            await check_shape(it, "POST", path, 400, wrong, content=b"{", headers=JSON)
            plain = {"Content-Type": "text/plain"}
            await check_shape(it, "POST", path, 415, wrong, content=b"{", headers=plain)
            await check_shape(it, "GET", path, 405, wrong)
            large = b"x" * 200_001
            how: dict[str, Any] = {"content": large, "headers": JSON}
            await check_shape(it, "POST", path, 413, "request_too_large", **how)
            del it.http.headers["X-Api-Key"]
        it.http.headers["X-Api-Key"] = "k"
        await check_shape(it, "GET", "/v1/messages/batches", 404, "not_found_error")
        page = {"Origin": "https://example.org"}
        await check_shape(it, "POST", PATH, 403, "permission_error", json=ASKED, headers=page)
        await check_shape(it, "POST", PATH, 400, wrong, json=ASKED)  # never more than its quota
        unknown = await it.http.get("/v1/nothing")
        assert unknown.json().keys() == {"error"} and "request-id" not in unknown.headers

    with_deployment(
        scenario, Reply(), nats_server, redis_server, tmp_path,
        api_keys_file=keys, body_bytes_max=200_000,
    )  # fmt: skip


def test_a_key_in_anthropic_s_header_is_a_key(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps([{"key": "a", "tenant": "a"}, {"key": "b", "tenant": "b"}]))

    async def scenario(it: Deployment) -> None:
        cases = [
            ({"X-Api-Key": "a"}, 200, "a"),
            ({"X-Api-Key": "x"}, 401, ""),
            ({"X-Api-Key": ""}, 401, ""),
            ({"X-Api-Key": "a", "Authorization": "Bearer b"}, 200, "b"),
            ({"X-Api-Key": "a", "Authorization": "Bearer x"}, 401, ""),
            ({"X-Api-Key": "a", "Authorization": "Bearer"}, 401, ""),
        ]
        for headers, status, tenant in cases:
            version = {"anthropic-version": "2023-06-01"}
            answer = await it.http.post(PATH, json=ASKED, headers=headers | version)
            assert answer.status_code == status, headers
            if tenant:
                assert it.fake.submits[-1].tenant == tenant
            listed = await it.http.get("/v1/models", headers=headers)
            assert listed.status_code == status, "on every path"

    with_deployment(scenario, Reply(), nats_server, redis_server, tmp_path, api_keys_file=keys)


def test_a_failure_on_the_way_is_an_event(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario(it: Deployment) -> None:
        first, *_, last = await stream(it)
        assert first["type"] == "message_start"
        assert (last["type"], last["error"]["type"]) == ("error", "api_error")
        assert last["error"]["code"] == "worker_broke" and last["request_id"]
        await check_shape(it, "POST", PATH, 500, "api_error", json=ASKED)

    with_deployment(scenario, Reply("hello", error_at=2), nats_server, redis_server, tmp_path)


def test_an_overloaded_deployment_says_so(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    def busy(prompt: m.Prompt) -> Reply:
        failed = m.TurnFailed(turn_id=prompt.turn_id, code="overloaded", message="busy")
        return Reply(failure=failed)

    async def scenario(it: Deployment) -> None:
        it.fake.reply = busy
        await check_shape(it, "POST", PATH, 503, "overloaded_error", json=ASKED)

    with_deployment(scenario, Reply(), nats_server, redis_server, tmp_path)
