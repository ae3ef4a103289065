"""Each field of a request does the same on each engine, or is refused by the same name."""

import asyncio
from typing import Any

import pytest

from services.worker.models.demo_model import MAX_POSITIONS
from tests.e2e.api.conftest import CHAT, HI, MESSAGES, RESPONSES, TEXT, Api, Json, Run

EOS, OTHER_EOS, START = 258, 256, 257
A, B = 65, 66
ALWAYS_EOS: Json = {"logit_bias": {str(EOS): 100}, "ignore_eos": False}
ALWAYS_A: Json = {"logit_bias": {str(A): 100}}
TOOL: Json = {"name": "weather", "parameters": {"type": "object"}}
TOOLS: Json = {"tools": [{"type": "function", "function": TOOL}]}
PNG = "data:image/png;base64,AAAA"
LONG = "x" * (MAX_POSITIONS - 2)

# What is generated follows from the body alone.
SAME: list[tuple[str, Json]] = [
    (CHAT, {}),
    (TEXT, {}),
    (RESPONSES, {}),
    (MESSAGES, {}),
    (CHAT, {"max_tokens": None, "max_completion_tokens": 3}),
    (TEXT, {"max_tokens": 0, "echo": True, "logprobs": 2}),
    (TEXT, ALWAYS_EOS),
    (CHAT, ALWAYS_EOS),
    (TEXT, {**ALWAYS_EOS, "logit_bias": {str(OTHER_EOS): 100}}),
    (TEXT, {**ALWAYS_EOS, "ignore_eos": True}),
    (TEXT, {**ALWAYS_EOS, "ignore_eos": True, "min_tokens": 5}),
    (TEXT, {**ALWAYS_EOS, "ignore_eos": True, "stop_token_ids": [EOS]}),
    (TEXT, {**ALWAYS_EOS, "min_tokens": 5}),
    (TEXT, {**ALWAYS_EOS, "min_tokens": 12}),
    (TEXT, {**ALWAYS_EOS, "min_tokens": 5, "logprobs": 2}),
    (TEXT, {**ALWAYS_A, "stop_token_ids": [A]}),
    (CHAT, {**ALWAYS_A, "stop_token_ids": [A]}),
    (TEXT, {**ALWAYS_A, "stop_token_ids": [A], "min_tokens": 5}),
    (TEXT, {"stop": ["e"], "max_tokens": 60}),
    (TEXT, {"stop": ["e"], "max_tokens": 60, "include_stop_str_in_output": True}),
    (TEXT, {"stop": ["e"], "max_tokens": 60, "min_tokens": 50}),
    (RESPONSES, {"stop": ["e", "Y"]}),
    (MESSAGES, {"stop_sequences": ["e", "Y"]}),
    (TEXT, {"temperature": 1.5, "top_k": 1}),
    (TEXT, {"temperature": 1.5, "top_p": 1e-9}),
    (TEXT, {"temperature": 1.5, "min_p": 1}),
    (MESSAGES, {"temperature": 1, "top_k": 1, "top_p": 0.9}),
    (TEXT, {"top_k": -1}),
    (TEXT, {"seed": -(2**63)}),
    (TEXT, {"seed": 2**63 - 1, "temperature": 1, "top_k": 1}),
    (TEXT, {"presence_penalty": 2, "max_tokens": 40}),
    (TEXT, {"frequency_penalty": 2, "max_tokens": 40}),
    (TEXT, {"presence_penalty": -2, "frequency_penalty": -2, "max_tokens": 30}),
    (TEXT, {"repetition_penalty": 10, "max_tokens": 40}),
    (TEXT, {"repetition_penalty": 0.5}),
    (TEXT, {"repetition_penalty": 1e-9}),
    (TEXT, {"logit_bias": {str(A): 3.5, str(B): -100}}),
    (TEXT, {"allowed_token_ids": [A, B]}),
    (TEXT, {"allowed_token_ids": [A, B], "logprobs": 5}),
    (TEXT, {"allowed_token_ids": [A, B], "logit_bias": {"97": 100, str(B): 5}}),
    (TEXT, {"n": 2, "best_of": 2}),
    (TEXT, {"prompt": ["ab", "cd"], "n": 2}),
    (TEXT, {"prompt": [[81]]}),
    (TEXT, {"prompt": [[OTHER_EOS, START, EOS]]}),
    (TEXT, {"logprobs": 0}),
    (TEXT, {"logprobs": 20, "max_tokens": 3}),
    (TEXT, {"logprobs": 3, "logit_bias": {str(A): 4}}),
    (TEXT, {"logprobs": 3, "temperature": 2, "top_k": 1}),
    (TEXT, {"logprobs": 3, "frequency_penalty": 2}),
    (TEXT, {"logprobs": 1, "return_tokens_as_token_ids": True}),
    (CHAT, {"logprobs": True, "top_logprobs": 3}),
    (CHAT, {"logprobs": True}),
    (RESPONSES, {"top_logprobs": 2, "include": ["message.output_text.logprobs"]}),
    (TEXT, {"echo": True}),
    (TEXT, {"echo": True, "logprobs": 2}),
    (TEXT, {"prompt_logprobs": 0}),
    (TEXT, {"prompt_logprobs": 2, "n": 2}),
    (TEXT, {"prompt_logprobs": 1, "prompt": "a bc" * 300}),
    (TEXT, {"prompt_logprobs": 1, "prompt": "a bc" * 300}),  # its prefix is cached now
    (CHAT, {"prompt_logprobs": 1}),
    (TEXT, {"priority": 5}),
    (TEXT, {"priority": -(2**31)}),
    (TEXT, {"cache_salt": "abc"}),
    (TEXT, {"prompt": LONG, "max_tokens": 2}),
    (TEXT, {"prompt": LONG, "max_tokens": None}),
    (TEXT, {"prompt": LONG + "xxx", "truncate_prompt_tokens": -1}),
    (CHAT, {"messages": [*HI, {"role": "assistant", "content": "well, "}],
            "continue_final_message": True}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}),
    (CHAT, TOOLS),
    (CHAT, {**TOOLS, "tool_choice": "none"}),
    (TEXT, {"skip_special_tokens": False, "logit_bias": {str(START): 100}}),
]  # fmt: skip

REFUSED: list[tuple[str, Json, str]] = [
    (TEXT, {"min_tokens": 13}, "min_tokens"),
    (TEXT, {"allowed_token_ids": [999]}, "allowed_token_ids"),
    (TEXT, {"stop_token_ids": [2**31 - 1]}, "stop_token_ids"),
    (TEXT, {"logit_bias": {"999": 1}}, "logit_bias"),
    (TEXT, {"prompt": [[999]]}, "prompt"),
    (TEXT, {"prompt": []}, "prompt"),
    (TEXT, {"logprobs": 21}, "logprobs"),
    (TEXT, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    (TEXT, {"prompt": LONG + "xx"}, "prompt"),
    (CHAT, {"messages": [{"role": "user", "content": LONG}]}, "messages"),
    (TEXT, {"bad_words": ["a"]}, "bad_words"),
    (CHAT, {"adapter_id": "none-such"}, "adapter_id"),
    (CHAT, {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": PNG}}]}]}, "messages[0].content[0]"),
    (RESPONSES, {"input": [{"role": "user", "content": [
        {"type": "input_image", "image_url": PNG}]}]}, "input[0].content"),
    (MESSAGES, {"messages": [{"role": "user", "content": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    ]}]}, "messages[0].content[0].type"),
]  # fmt: skip

# Held to a form; an engine that cannot do that says so.
SCHEMA: Json = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
FORMS: list[tuple[str, Json]] = [
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}),
    (CHAT, {"guided_choice": ["yes", "no"]}),
    (TEXT, {"guided_regex": "[ab]{3}"}),
    (CHAT, {**TOOLS, "tool_choice": "required"}),
    (CHAT, {**TOOLS, "tool_choice": {"type": "function", "function": {"name": "weather"}}}),
    (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}),
    (MESSAGES, {"tools": [{"name": "weather", "input_schema": SCHEMA}],
                "tool_choice": {"type": "any"}, "max_tokens": 100}),
]  # fmt: skip

OF_ONE_REQUEST = {
    "id", "created", "created_at", "completed_at", "session_id", "request_id",
    "prompt_tokens_details", "input_tokens_details", "cache_read_input_tokens", "input_tokens",
}  # fmt: skip


def test_the_same_comes_of_each_field(run: Run, answers: dict[str, Any]) -> None:
    async def scenario(api: Api) -> None:
        made = await asyncio.gather(*(api.whole(path, **fields) for path, fields in SAME))
        for (path, fields), answer in zip(SAME, made, strict=True):
            case = f"{path} {fields}"
            expected = answers.setdefault(case, answer)
            assert is_alike(answer, expected), f"{case}\n{answer}\n{expected}"

    run(scenario)


def test_the_same_is_refused_by_its_name(run: Run, answers: dict[str, Any]) -> None:
    async def scenario(api: Api) -> None:
        for path, fields, param in REFUSED:
            answer = await api.ask(path, **fields)
            error = answer.json()["error"]
            assert answer.status_code in (400, 404), fields
            assert error["param"] == param, error
            case = f"refused {path} {fields}"
            assert is_alike(error, answers.setdefault(case, error)), case

    run(scenario)


def test_forms_are_kept(run: Run, answers: dict[str, Any]) -> None:
    async def scenario(api: Api) -> None:
        for path, fields in FORMS:
            ends = {"max_tokens": 100, "ignore_eos": False} if path in (CHAT, TEXT) else {}
            answer = await api.ask(path, **ends, **fields)
            assert answer.status_code == 200, answer.text
            case = f"{path} {fields}"
            made = answer.json()
            assert is_alike(made, answers.setdefault(case, made)), f"{case}\n{made}"

    run(scenario)


def is_alike(one: Any, other: Any) -> bool:
    """Equal, but for what belongs to one request, and the last bits of log-probabilities."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = (one.keys() | other.keys()) - OF_ONE_REQUEST
        return all(
            name in one and name in other and is_alike(one[name], other[name]) for name in names
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, abs=0.02)
    return bool(one == other)
