"""The table of fields: it agrees with the bodies and with its page, and refuses by name."""

import re
from typing import Any, get_args

import orjson
import pytest

from cli.base.children import ROOT
from cli.docs.fields import PAGE, table
from services.frontend.api.bodies.anthropic import CountTokensBody, MessagesBody
from services.frontend.api.bodies.base import Body, Endpoint
from services.frontend.api.bodies.fields import FIELDS, TABLE, parse
from services.frontend.api.bodies.oneshot import (
    ClassifyBody,
    CohereEmbedBody,
    EmbeddingBody,
    PoolingBody,
    RerankBody,
    ScoreBody,
)
from services.frontend.api.bodies.responses import (
    ConversationBody,
    ConversationItemsBody,
    ReadResponsesBody,
    ResponsesBody,
)
from services.frontend.api.bodies.text import (
    AdvisoryBody,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    LoadAdapterBody,
    StreamOptions,
    TokenizeBody,
    UnloadAdapterBody,
)
from shared.errors import InvalidRequest

BODIES: dict[type[Body], dict[str, Any]] = {
    ChatBody: {"messages": [{"role": "user", "content": "hi"}]},
    CompletionBody: {"prompt": "hi"},
    ResponsesBody: {"input": "hi"},
    ReadResponsesBody: {"input": "hi"},
    ConversationBody: {},
    ConversationItemsBody: {"items": [{"role": "user", "content": "hi"}]},
    CountTokensBody: {"messages": [{"role": "user", "content": "hi"}]},
    MessagesBody: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1},
    TokenizeBody: {"prompt": "hi"},
    DetokenizeBody: {"tokens": [1]},
    AdvisoryBody: {"session_id": "s"},
    LoadAdapterBody: {"lora_name": "a", "lora_path": "/a"},
    UnloadAdapterBody: {"lora_name": "a"},
    EmbeddingBody: {"input": "a"},
    PoolingBody: {"input": "a"},
    ClassifyBody: {"input": "a"},
    RerankBody: {"query": "a", "documents": ["b"]},
    ScoreBody: {"text_1": "a", "text_2": "b"},
    CohereEmbedBody: {"texts": ["a"]},
}


def parsed(kind: type[Body], **fields: Any) -> Body:
    return parse(kind, orjson.dumps({"model": "m", **BODIES[kind], **fields}))


def test_the_page_shows_the_table() -> None:
    assert PAGE.read_text().endswith(table()), "run: python -m cli.docs.fields"


@pytest.mark.parametrize("kind", BODIES)
def test_a_body_reads_what_works_and_nothing_else(kind: type[Body]) -> None:
    works = {
        name for (endpoint, name), field in TABLE.items()
        if endpoint == kind.endpoint and field.fate == "works" and "." not in name
    }  # fmt: skip
    assert works == set(kind.model_fields)


def test_it_is_known_where_each_field_of_text_goes() -> None:
    text = {"chat", "completions", "responses", "messages", "tokenize", "detokenize"}
    for field in FIELDS:
        goes_somewhere = field.fate == "works" and bool(text & {*field.endpoints})
        assert (field.stage is not None) is goes_somewhere, field.name


def test_stream_options_are_those_of_the_table() -> None:
    prefix = "stream_options."
    works = {f.name for f in FIELDS if f.fate == "works" and f.name.startswith(prefix)}
    assert works == {prefix + name for name in StreamOptions.model_fields}


def test_every_endpoint_has_a_body() -> None:
    assert {kind.endpoint for kind in BODIES} == set(get_args(Endpoint))


@pytest.mark.parametrize("kind", BODIES)
def test_refused_fields_are_refused_by_name_and_harmless_values_pass(kind: type[Body]) -> None:
    fields = [f for (endpoint, _), f in TABLE.items() if endpoint == kind.endpoint]
    for field in fields:
        if field.fate == "ignored":
            parsed(kind, **{field.name: {"any": "thing"}})
        if field.fate != "refused":
            continue
        for harmless in (None, *field.values):
            parsed(kind, **{field.name: harmless})
        with pytest.raises(InvalidRequest) as caught:
            parsed(kind, **{field.name: "no such value"})
        assert (caught.value.param, caught.value.code) == (field.name, "unsupported_value")
        assert field.hint in caught.value.message


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (ChatBody, {"structural_tag": "{}"}),
        (CompletionBody, {"logprob_token_ids": [1]}),
        (ChatBody, {"custom_logit_processor": "x"}),
        (ChatBody, {"thinking_token_budget": 1}),
        (ChatBody, {"use_beam_search": 0}),
        (EmbeddingBody, {"embed_dtype": "fp8_e4m3"}),
        (EmbeddingBody, {"endianness": "middle"}),
        (EmbeddingBody, {"encoding_format": "bytes"}),
        (EmbeddingBody, {"normalize": False}),
        (ClassifyBody, {"use_activation": False}),
        (RerankBody, {"use_activation": False}),
        (ClassifyBody, {"normalize": True}),
        (CohereEmbedBody, {"truncate": "MIDDLE"}),
        (CohereEmbedBody, {"input_type": "image"}),
        (ChatBody, {"truncation_side": "middle"}),
    ],
)
def test_what_was_ignored_in_silence(kind: type[Body], fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(kind, **fields)
    assert (caught.value.param, caught.value.code) == (*fields, "unsupported_value")


def test_unknown_fields_clash_with_nothing() -> None:
    strange = {"endpoint": 1, "model_fields": 2, "model_extra": 3, "__dict__": 4, "parse": 5, "": 6}
    body = parsed(ChatBody, **strange)
    assert isinstance(body, ChatBody)
    assert body.endpoint == "chat" and body.model == "m"
    with pytest.raises(InvalidRequest):
        parsed(ChatBody, **strange, functions=[{}])


def test_the_prose_does_not_list_the_table_again() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    assert "(fields.md)" in text
    assert not re.search(r"`thinking_token_budget`", text)
