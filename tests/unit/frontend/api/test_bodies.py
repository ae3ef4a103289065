"""Bodies: what is refused, and that the answer names the field."""

import inspect
import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from services.frontend.api.bodies.base import token_list
from services.frontend.api.bodies.fields import parse
from services.frontend.api.bodies.text import ChatBody, CompletionBody, stop_strings
from services.frontend.api.text.requests import chat_request
from services.frontend.http.request import Origin
from services.frontend.prepare.fit import max_new_tokens
from services.frontend.prepare.messages import chat_messages
from services.frontend.prepare.requests import ChatRequest
from services.frontend.prepare.sampling import sampling_params
from services.frontend.prepare.template import TEMPLATE_OWN
from services.frontend.prepare.template import template_options as options_of
from shared.errors import InvalidRequest
from shared.wire.messages import SamplingDefaults, SamplingParams

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def chat(**fields: Any) -> ChatBody:
    return parse(ChatBody, orjson.dumps(CHAT | fields))


def asked(body: ChatBody) -> ChatRequest:
    return chat_request(body, Origin())


def sampled(
    body: ChatBody, max_tokens: int, vocab_size: int, defaults: SamplingDefaults | None = None
) -> SamplingParams:
    card = SimpleNamespace(sampling=defaults or SamplingDefaults())
    model: Any = SimpleNamespace(vocab_size=vocab_size, card=card)
    return sampling_params(asked(body).generation.sampling, model, max_tokens=max_tokens)


def template_options(body: ChatBody, names: frozenset[str]) -> dict[str, Any]:
    return options_of(asked(body).conversation, names)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"model": ""}, "model"),
        ({"session_id": "a\nb"}, "session_id"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"seed": 2**70}, "seed"),
        ({"stream_options": 3, "stream": True}, "stream_options"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "code", "function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": {}}, "tools"),
    ],
)
def test_wrong_values_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(ChatBody, json.dumps(CHAT | fields).encode())
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{}]),
        ("audio", {}),
        ("modalities", ["text", "audio"]),
        ("structural_tag", {}),
        ("best_of", 2),
        ("stream_options", {"include_usage": True}),
        ("echo", True),
    ],
)
def test_unsupported_values_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        asked(chat(**{name: value}))
    assert caught.value.param == name


def test_unknown_and_harmless_fields_pass() -> None:
    body = chat(
        nobody_knows=1, tools=[], tool_choice="none", response_format={"type": "text"},
        modalities=["text"], user="u", functions=None, best_of=1,
    )  # fmt: skip
    asked(body)


def test_whole_numbers_may_be_written_as_floats() -> None:
    body = chat(n=2.0, stop_token_ids=[1.0])
    assert (repr(body.n), repr(body.stop_token_ids)) == ("2", "[1]")
    assert token_list([1, 2.0]) == [1, 2] and repr(token_list([2.0])) == "[2]"
    for wrong in ([1.5], [True], ["1"], [-1], [2**31], [float("nan")], "ab", None):
        assert token_list(wrong) is None
    for wrong_n in (1.5, True, "1", 1e300):
        with pytest.raises(InvalidRequest):
            chat(n=wrong_n)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model":"\xff"}', b"null", b'"\\ud800"'])
def test_malformed_bodies(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse(CompletionBody, body)


def test_messages_become_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat_messages(
        [{"role": "developer", "content": parts}, {"role": "assistant", "content": None}]
    ) == [{"role": "system", "content": "ab"}, {"role": "assistant", "content": ""}]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "boss", "content": ""}, "messages[0].role"),
        ({"role": ["user"], "content": ""}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 3}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0]"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0].function.name"),
    ],
)
def test_messages_that_cannot_be_rendered(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat_messages([message])
    assert caught.value.param == param


def test_stop_strings() -> None:
    assert stop_strings(None) == []
    assert stop_strings("a") == ["a"]
    for wrong in ("", [""], ["a"] * 17, 3, [3], "x" * 513):
        with pytest.raises(InvalidRequest):
            stop_strings(wrong)


def test_sampling_draws_a_seed_and_checks_token_ids() -> None:
    first, second = (sampled(chat(), max_tokens=5, vocab_size=10) for _ in range(2))
    assert first.seed is not None and first.seed != second.seed
    biased = sampled(chat(logit_bias={"9": -100, "1": 1}), max_tokens=5, vocab_size=10)
    assert biased.logit_bias == [(9, -100.0), (1, 1.0)]
    for key in ("10", "-1", "x", "\u0663", "9" * 5000, "000000000001" + "0" * 9, "", "0" * 13):
        with pytest.raises(InvalidRequest) as caught:
            sampled(chat(logit_bias={key: 1}), max_tokens=5, vocab_size=10)
        assert caught.value.param == "logit_bias"
    with pytest.raises(InvalidRequest, match="twice"):
        sampled(chat(logit_bias={"1": 1, "01": 2}), max_tokens=5, vocab_size=10)
    many = {str(token): 1 for token in range(1025)}
    with pytest.raises(InvalidRequest, match="1024"):
        sampled(chat(logit_bias=many), max_tokens=5, vocab_size=5000)
    with pytest.raises(InvalidRequest):
        sampled(chat(stop_token_ids=[10]), max_tokens=5, vocab_size=10)
    with pytest.raises(InvalidRequest):
        sampled(chat(top_logprobs=1), max_tokens=5, vocab_size=10)
    with pytest.raises(InvalidRequest):
        sampled(chat(min_tokens=6), max_tokens=5, vocab_size=10)


def test_allowed_tokens_are_checked_whole() -> None:
    params = sampled(chat(allowed_token_ids=[9, 0]), max_tokens=5, vocab_size=10)
    assert params.allowed_token_ids == [9, 0]
    with pytest.raises(InvalidRequest) as caught:
        sampled(chat(allowed_token_ids=[10]), max_tokens=5, vocab_size=10)
    assert caught.value.param == "allowed_token_ids"
    for wrong in ([0] * 1025, [-1], ["1"], [1.5], [True]):
        with pytest.raises(InvalidRequest):
            chat(allowed_token_ids=wrong)


def test_what_a_template_is_told() -> None:
    reads = frozenset({"x", "documents", "return_x"})
    assert template_options(chat(), reads)["add_generation_prompt"] is True
    assert template_options(chat(chat_template_kwargs={"x": 1}), reads)["x"] == 1
    options = template_options(chat(continue_final_message=True), reads)
    assert options == {"add_generation_prompt": False, "continue_final_message": True}
    for fields, param in (
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
        ({"chat_template_kwargs": {"tools": [{}]}}, "chat_template_kwargs.tools"),
        ({"chat_template_kwargs": {"documents": [{}]}}, "chat_template_kwargs.documents"),
        ({"chat_template_kwargs": {"return_x": 1}}, "chat_template_kwargs.return_x"),
        ({"chat_template_kwargs": {"y" * 99: 1}}, "chat_template_kwargs." + "y" * 64),
    ):
        with pytest.raises(InvalidRequest) as caught:
            template_options(chat(**fields), reads)
        assert caught.value.param == param
    with pytest.raises(InvalidRequest, match=r"it reads x$"):
        template_options(chat(chat_template_kwargs={"y": 1}), reads)


def test_what_a_template_cannot_be_told_is_all_of_its_callers() -> None:
    from transformers import PreTrainedTokenizerBase

    own = inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters.keys()
    assert own - {"self", "kwargs"} <= set(TEMPLATE_OWN)


def test_room_for_the_reply() -> None:
    room = partial(max_new_tokens, num_prompt=90, max_model_len=100)
    assert room(None, 0) == 10
    assert room(None, 4) == 4
    assert room(None, 40) == 10
    assert room(7, 4) == 7
    assert room(0, 4) == 1
    assert room(11, 0) == room(32_000, 4) == 10
    for asked in (1, None):
        with pytest.raises(InvalidRequest) as caught:
            max_new_tokens(asked, 0, num_prompt=100, max_model_len=100)
        assert caught.value.code == "context_length_exceeded"


def test_a_model_s_makers_say_how_to_sample_where_a_request_does_not() -> None:
    advised = SamplingDefaults(
        temperature=0.2, top_p=0.9, top_k=40, min_p=0.1, repetition_penalty=1.5
    )
    params = sampled(chat(), max_tokens=5, vocab_size=10, defaults=advised)
    assert (params.temperature, params.top_p, params.top_k) == (0.2, 0.9, 40)
    assert (params.min_p, params.repetition_penalty) == (0.1, 1.5)
    body = chat(temperature=0, top_p=1, top_k=-1, min_p=0, repetition_penalty=1)
    params = sampled(body, max_tokens=5, vocab_size=10, defaults=advised)
    assert (params.temperature, params.top_p, params.top_k) == (0.0, 1.0, 0)
    assert (params.min_p, params.repetition_penalty) == (0.0, 1.0)
