"""Fields of other servers that change what is generated or shown, over HTTP."""

import asyncio
import json
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from shared.blocks import BLOCK_TOKENS
from shared.wire import messages as m
from tests.conftest import Server
from tests.integration.frontend.deployment import (
    EOS,
    MODEL,
    MODEL_LEN,
    Deployment,
    Reply,
    deployment,
)

HI = [{"role": "user", "content": "hi"}]
CHAT: dict[str, Any] = {"model": MODEL, "messages": HI}
TEXT: dict[str, Any] = {"model": MODEL, "prompt": "abc"}
SAID = "h\u00e4!"
TOKENS = [*SAID.encode(), EOS]
PATHS = {"/v1/chat/completions": CHAT, "/v1/completions": TEXT}


async def whole(it: Deployment, path: str, **fields: Any) -> dict[str, Any]:
    answer = await it.http.post(path, json=PATHS[path] | fields)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def chunks(it: Deployment, path: str, **fields: Any) -> list[dict[str, Any]]:
    answer = await it.http.post(path, json=PATHS[path] | {"stream": True} | fields)
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]", answer.text
    return [json.loads(line) for line in lines[:-1]]


def joined(parts: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(parts))


def prompt_of(it: Deployment, at: int = -1) -> list[int]:
    return m.unpack_ints(it.fake.prompts[at].tokens)


async def check_token_ids(it: Deployment) -> None:
    made = await whole(it, "/v1/chat/completions", return_token_ids=True)
    assert made["choices"][0]["token_ids"] == TOKENS
    assert made["prompt_token_ids"] == prompt_of(it)
    made = await whole(it, "/v1/completions", return_token_ids=True)
    assert made["choices"][0]["token_ids"] == TOKENS
    assert made["choices"][0]["prompt_token_ids"] == [*b"abc"]
    many = await chunks(it, "/v1/chat/completions", return_token_ids=True)
    assert [c["prompt_token_ids"] for c in many if "prompt_token_ids" in c] == [prompt_of(it)]
    assert joined(c["choices"][0].get("token_ids", []) for c in many) == TOKENS
    many = await chunks(it, "/v1/completions", return_token_ids=True)
    choices = [c["choices"][0] for c in many]
    assert [c["prompt_token_ids"] for c in choices if "prompt_token_ids" in c] == [[*b"abc"]]
    assert joined(c["token_ids"] for c in choices) == TOKENS
    for path in PATHS:
        assert "token_ids" not in json.dumps(await whole(it, path))


async def check_names_of_tokens(it: Deployment) -> None:
    fields = {"logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True}
    made = await whole(it, "/v1/chat/completions", **fields)
    entries = made["choices"][0]["logprobs"]["content"]
    names = [f"token_id:{token}" for token in TOKENS]
    assert [entry["token"] for entry in entries] == names[: len(entries)]
    assert bytes(joined(entry["bytes"] for entry in entries)).startswith(SAID.encode())
    assert entries[0]["top_logprobs"][0]["token"].startswith("token_id:")
    made = await whole(
        it, "/v1/completions", logprobs=1, echo=True, return_tokens_as_token_ids=True
    )
    block = made["choices"][0]["logprobs"]
    assert block["tokens"][:4] == ["token_id:97", "token_id:98", "token_id:99", names[0]]
    assert all(name.startswith("token_id:") for name in block["top_logprobs"][1])
    assert block["text_offset"][:4] == [0, 1, 2, 3]


async def check_usage_in_every_chunk(it: Deployment) -> None:
    for path in PATHS:
        options = {"include_usage": True, "continuous_usage_stats": True}
        many = await chunks(it, path, stream_options=options)
        counts = [chunk["usage"]["completion_tokens"] for chunk in many]
        assert counts == sorted(counts) and counts[-1] == len(TOKENS)
        assert many[-1]["choices"] == []
        if path == "/v1/chat/completions":
            assert counts[0] == 0 and 0 not in counts[1:]  # with the role nothing is said yet
        many = await chunks(it, path, stream_options=options | {"include_usage": False})
        assert not any("usage" in chunk for chunk in many)
        many = await chunks(it, path, stream_options={"continuous_usage_stats": True})
        assert many[-1]["choices"] and many[-1]["usage"]["completion_tokens"] == len(TOKENS)
        many = await chunks(it, path, stream_options={"include_usage": True})
        assert all(chunk["usage"] is None for chunk in many[:-1])


async def check_logprobs_of_prompts(it: Deployment) -> None:
    made = await whole(it, "/v1/completions", prompt=["abc", "de"], prompt_logprobs=2)
    first, second = (choice["prompt_logprobs"] for choice in made["choices"])
    assert first[0] is None and len(first) == 3 and len(second) == 2
    own = {"logprob": -0.5, "rank": 1, "decoded_token": "b"}
    assert first[1] == {"98": own, "99": {"logprob": -1.5, "rank": 2, "decoded_token": "c"}}
    assert made["choices"][0]["logprobs"] is None
    made = await whole(it, "/v1/completions", prompt_logprobs=0, echo=True, logprobs=1)
    assert made["choices"][0]["prompt_logprobs"][1] == {"98": own}
    assert made["choices"][0]["logprobs"]["top_logprobs"][1] == {"b": -0.5}
    fields = {"prompt_logprobs": 1, "n": 2, "return_tokens_as_token_ids": True}
    made = await whole(it, "/v1/chat/completions", **fields)
    told = made["prompt_logprobs"]
    assert told[0] is None and len(told) == len(prompt_of(it))
    assert all(entry["decoded_token"] == f"token_id:{k}" for k, entry in told[1].items())
    assert "prompt_logprobs" not in await whole(it, "/v1/chat/completions")
    for path, body in PATHS.items():
        for wrong in ({"prompt_logprobs": -1}, {"prompt_logprobs": 1, "stream": True}):
            answer = await it.http.post(path, json=body | wrong)
            assert answer.json()["error"]["param"] == "prompt_logprobs"


async def check_allowed_tokens(it: Deployment) -> None:
    for path in PATHS:
        await whole(it, path, allowed_token_ids=[104, EOS])
        assert it.fake.prompts[-1].sampling.allowed_token_ids == [104, EOS]
    answer = await it.http.post("/v1/completions", json=TEXT | {"allowed_token_ids": [EOS + 9]})
    assert answer.json()["error"]["param"] == "allowed_token_ids"


async def check_cut_prompts(it: Deployment) -> None:
    await whole(it, "/v1/completions", prompt=["abcdef", "gh"], truncate_prompt_tokens=3)
    assert sorted([prompt_of(it, -1), prompt_of(it, -2)]) == [[*b"def"], [*b"gh"]]
    long = "x" * MODEL_LEN + "y"
    made = await whole(it, "/v1/completions", prompt=long, truncate_prompt_tokens=-1, max_tokens=9)
    assert prompt_of(it)[-1] == ord("y") and len(prompt_of(it)) == MODEL_LEN - 9
    assert made["usage"]["prompt_tokens"] == MODEL_LEN - 9
    messages = [{"role": "user", "content": long}]
    full = await it.http.post("/v1/chat/completions", json=CHAT | {"messages": messages})
    assert full.json()["error"]["code"] == "context_length_exceeded"
    await whole(it, "/v1/chat/completions", messages=messages, truncate_prompt_tokens=20)
    assert len(prompt_of(it)) == 20


async def check_cut_sessions(it: Deployment) -> None:
    text = "".join(chr(97 + at % 26) for at in range(200))
    fields = {"session_id": "cut", "prompt": text, "truncate_prompt_tokens": 130}
    await whole(it, "/v1/completions", **fields)
    assert prompt_of(it) == [*text[-130:].encode()]
    record = (await it.http.get("/v1/sessions/cut")).json()
    num_tokens = 130 + len(SAID.encode())
    assert record["num_tokens"] == num_tokens
    assert record["num_blocks"] == num_tokens // BLOCK_TOKENS + 1, "the partial last one counts"
    await whole(it, "/v1/completions", prompt=text + SAID + "z", session_id="cut")
    assert prompt_of(it) == [*(text + SAID + "z").encode()], "nothing is cut that was not asked for"
    assert (await it.http.get("/v1/sessions/cut")).json()["num_turns"] == 2


async def check_continued_messages(it: Deployment) -> None:
    messages = [*HI, {"role": "assistant", "content": "well, "}]
    fields = {"messages": messages, "continue_final_message": True}
    await whole(it, "/v1/chat/completions", **fields)
    continued = bytes(token for token in prompt_of(it) if token < 256)
    assert continued.endswith(b"well, ") and prompt_of(it)[-1] == ord(" ")
    tokens = await it.http.post("/tokenize", json={"model": MODEL, **fields})
    assert tokens.json()["tokens"] == prompt_of(it)
    for path in ("/v1/chat/completions", "/tokenize"):
        both = {"model": MODEL, **fields, "add_generation_prompt": True}
        answer = await it.http.post(path, json=both)
        assert answer.json()["error"]["param"] == "continue_final_message"
        answer = await it.http.post(path, json={"model": MODEL, **fields, "tools": [{}]})
        assert answer.json()["error"]["param"] == "tools[0].type"


def test_fields_of_generation(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path, lambda _: Reply(SAID)) as it:
            await check_token_ids(it)
            await check_names_of_tokens(it)
            await check_usage_in_every_chunk(it)
            await check_logprobs_of_prompts(it)
            await check_allowed_tokens(it)
            await check_cut_prompts(it)
            await check_cut_sessions(it)
            await check_continued_messages(it)

    asyncio.run(scenario())
