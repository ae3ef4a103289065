"""A turn of Codex CLI 0.171, by requests as it sends them: its tools, a call, the call's answer."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response

from services.frontend.core.tools.free_form import InputReader, arguments_of, input_of
from shared.wire import messages as m
from shared.wire.grammar import byte_tokenizer, flaw_of
from tests.conftest import Server
from tests.integration.frontend import deployment as fakes
from tests.integration.frontend.api.strict import check, events_of
from tests.integration.frontend.api.test_responses import asked
from tests.integration.frontend.deployment import MODEL, Deployment, Reply, deployment

PATCH = '*** Begin Patch\n*** Add File: a.txt\n+say "hi" \u00e9 \U0001f98a\n*** End Patch'
LARK = 'start: "*** Begin Patch" LF\n%import common.LF\n'


def function(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "additionalProperties": False}
    return {
        "type": "function", "name": name, "description": name, "strict": False,
        "parameters": parameters,
    }  # fmt: skip


TOOLS = [
    function("exec_command", cmd={"type": "string"}),
    {
        "type": "custom", "name": "apply_patch", "description": "Edit files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": LARK},
    },
    {
        "type": "namespace", "name": "agents", "description": "Sub-agents.",
        "tools": [function("spawn_agent", task={"type": "string"}), function("close_agent")],
    },
    {"type": "tool_search", "execution": "client", "description": "d", "parameters": {}},
    {"type": "web_search", "external_web_access": False, "search_content_types": ["text"]},
]  # fmt: skip
MESSAGES = [
    {
        "type": "message", "id": f"msg_{at}", "role": role,
        "content": [{"type": "input_text", "text": text}],
    }
    for at, (role, text) in enumerate([("developer", "Be"), ("user", "In /a"), ("user", "Go")])
]  # fmt: skip
BODY: dict[str, Any] = {
    "model": MODEL, "stream": True, "input": MESSAGES, "tools": TOOLS, "tool_choice": "auto",
    "parallel_tool_calls": True, "reasoning": {"effort": "xhigh", "summary": "auto"},
    "store": False, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "01a2",
    "text": {"verbosity": "low"},
    "client_metadata": {"turn_id": "01a2", "x-codex-turn-metadata": '{"sandbox":"seccomp"}'},
}  # fmt: skip
HEADERS = {
    "x-codex-turn-metadata": '{"session_id":"01a2"}', "session-id": "01a2",
    "originator": "codex_exec", "accept": "text/event-stream",
}  # fmt: skip


def called(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def test_a_turn_of_codex(
    nats_server: Server, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fakes, "MODEL_LEN", 8192)  # a byte of its tools is a token
    spawn = called("agents.spawn_agent", '{"task": "look"}')
    first_reply = f"I edit.{called('apply_patch', arguments_of(PATCH))}\n{spawn}"

    def reply(prompt: m.Prompt) -> Reply:
        return Reply("Done." if "tool\n" in text_of(prompt) else first_reply)

    def text_of(prompt: m.Prompt) -> str:
        return bytes(t for t in m.unpack_ints(prompt.tokens) if t < 256).decode()

    async def turn(it: Deployment, **fields: Any) -> list[dict[str, Any]]:
        answer = await it.http.post("/v1/responses", json={**BODY, **fields}, headers=HEADERS)
        assert answer.status_code == 200, answer.text
        return events_of(answer.text)

    async def run() -> None:
        async with deployment(nats_server, redis_server, tmp_path, reply) as it:
            await scenario(it)

    async def scenario(it: Deployment) -> None:
        events = await turn(it)
        made = events[-1]["response"]
        assert events[-1]["type"] == "response.completed" and made["status"] == "completed"
        check(Response, made)
        said, patch, spawned = made["output"]
        assert said["content"][0]["text"] == "I edit."
        assert (patch["type"], patch["name"]) == ("custom_tool_call", "apply_patch")
        assert patch["input"] == PATCH and patch["id"].startswith("ctc_")
        assert patch["call_id"].startswith("call_")
        assert (spawned["type"], spawned["name"]) == ("function_call", "spawn_agent")
        assert spawned["namespace"] == "agents" and spawned["id"].startswith("fc_")
        assert made["id"].startswith("resp_") and said["id"].startswith("msg_")
        deltas = [
            e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta"
        ]
        assert "".join(deltas) == PATCH and len(deltas) > 10
        kinds = [event["type"] for event in events]
        assert kinds.count("response.custom_tool_call_input.done") == 1
        assert kinds.count("response.function_call_arguments.done") == 1

        assert [tool["type"] for tool in made["tools"]] == ["function", "custom", "namespace"]
        noted = {(warned["param"], warned["code"]) for warned in made["warnings"]}
        assert noted == {
            ("tools[1].format", "grammar_not_enforced"), ("tools[3]", "tool_left_out"),
            ("tools[4]", "tool_left_out"),
        }  # fmt: skip
        grammar = it.fake.prompts[-1].sampling.grammar
        assert grammar and not flaw_of(grammar, byte_tokenizer()), "a custom call has a text"

        calls = [
            {name: item[name] for name in item if name != "status"} for item in made["output"][1:]
        ]
        answers = [
            {"type": "custom_tool_call_output", "id": "ctco_1", "call_id": patch["call_id"],
             "output": "patched"},
            {"type": "function_call_output", "id": "fco_1", "call_id": spawned["call_id"],
             "output": [{"type": "input_text", "text": "spawned"}]},
        ]  # fmt: skip
        searched = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
        said_again = {
            "type": "message", "role": "assistant",
            "content": [{"type": "refusal", "refusal": "No."}],
        }  # fmt: skip
        history = [*MESSAGES, said_again, searched, said, *calls, *answers]
        events = await turn(it, input=history)
        done = events[-1]["response"]
        assert done["output"][0]["content"][0]["text"] == "Done."
        assert ("input[4]", "item_left_out") in {
            (warned["param"], warned["code"]) for warned in done["warnings"]
        }
        prompt = asked(it)
        assert "agents.spawn_agent" in prompt and "tool\npatched\n" in prompt
        assert "tool\nspawned\n" in prompt and "No." in prompt
        assert done["usage"]["input_tokens_details"]["cache_write_tokens"] == 0
        await choices(it)

    async def choices(it: Deployment) -> None:
        """What may be called, by `tool_choice`."""

        async def chosen(choice: Any, **fields: Any) -> str:
            body = {**BODY, "stream": False, "tool_choice": choice, **fields}
            answer = await it.http.post("/v1/responses", json=body)
            assert answer.status_code == 200, answer.text
            check(Response, answer.json())
            return it.fake.prompts[-1].sampling.grammar or ""

        custom = await chosen({"type": "custom", "name": "apply_patch"})
        assert "apply_patch" in custom and "exec_command" not in custom
        named = {"type": "function", "name": "close_agent"}
        assert "agents.close_agent" in await chosen(named)
        allowed: dict[str, Any] = {
            "type": "allowed_tools", "mode": "required",
            "tools": [{"type": "custom", "name": "apply_patch"}, named, {"type": "web_search"}],
        }  # fmt: skip
        some = await chosen(allowed)
        assert "apply_patch" in some and "agents.close_agent" in some
        assert "exec_command" not in some
        digits = {"type": "grammar", "syntax": "regex", "definition": "[0-9]{3}"}
        three = await chosen("required", tools=[{"type": "custom", "name": "f", "format": digits}])
        assert "[0-9]{3}" in three and not flaw_of(three, byte_tokenizer())
        for fields, param in (
            ({"tools": [{"type": "teapot"}]}, "tools[0].type"),
            ({"tools": [{"type": "custom"}]}, "tools[0].name"),
            ({"tools": [{**TOOLS[2], "tools": [{"type": "function"}]}]}, "tools[0].tools[0].name"),
            ({"tools": [TOOLS[4]], "tool_choice": "required"}, "tool_choice"),
            ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
            ({"tool_choice": {**allowed, "tools": [{"type": "function", "name": "x"}]}},
             "tool_choice"),
            ({"tools": [{"type": "custom", "name": "f", "format": {"type": "grammar"}}]},
             "tools[0].format"),
        ):  # fmt: skip
            answer = await it.http.post("/v1/responses", json={**BODY, **fields})
            assert answer.status_code == 400, (fields, answer.text)
            assert answer.json()["error"]["param"] == param, (fields, answer.text)

    asyncio.run(run())


CODEX = Path(os.environ.get("TEST_NODE_MODULES", "node_modules")) / ".bin" / "codex"


@pytest.mark.skipif(not CODEX.exists(), reason="@openai/codex: not in TEST_NODE_MODULES")
def test_codex_itself(
    nats_server: Server, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fakes, "MODEL_LEN", 262_144)
    run_it = called("exec_command", json.dumps({"cmd": "printf six; printf teen"}))

    def reply(prompt: m.Prompt) -> Reply:
        text = bytes(t for t in m.unpack_ints(prompt.tokens) if t < 256).decode()
        return Reply("It says so." if "sixteen" in text else f"I look.{run_it}")

    async def run() -> None:
        async with deployment(nats_server, redis_server, tmp_path, reply) as it:
            home, work = tmp_path / "home", tmp_path / "work"
            home.mkdir()
            work.mkdir()
            (home / "config.toml").write_text(
                f'model = "{MODEL}"\nmodel_provider = "here"\n[model_providers.here]\n'
                f'name = "here"\nbase_url = "{it.url}/v1"\nwire_api = "responses"\n'
            )
            codex = await asyncio.create_subprocess_exec(
                str(CODEX.absolute()), "exec", "--skip-git-repo-check", "What does it say?",
                cwd=work, env={**os.environ, "CODEX_HOME": str(home)},
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            async with asyncio.timeout(300):
                out, errors = await codex.communicate()
            assert codex.returncode == 0, errors.decode()
            assert out.decode().strip() == "It says so.", errors.decode()
            assert "sixteen" in errors.decode() and len(it.fake.prompts) == 2

    asyncio.run(run())


@pytest.mark.parametrize("text", [PATCH, "", "\\", '"', "\U0001f98a\b\f\t/"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_an_input_is_read_as_it_comes(text: str, ascii_only: bool) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    for size in (1, 7, len(arguments)):
        reader = InputReader()
        parts = [arguments[at : at + size] for at in range(0, len(arguments), size)]
        assert "".join(map(reader.feed, parts)) == input_of(arguments) == text
    half = InputReader()
    assert half.feed('{"input": "a\\ud83d"') == input_of('{"input": "a\\ud83d"}') == "a\ufffd"
