"""Prompts that are cut: the tokens that are served are those that keys and records speak of."""

import asyncio
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from services.frontend.api.bodies.fields import parse
from services.frontend.api.bodies.text import CompletionBody
from services.frontend.api.text.requests import completion_request
from services.frontend.http.request import Origin
from services.frontend.prepare.fit import ROOM_PARTS
from services.frontend.prepare.requests import Owner
from services.frontend.prepare.tokenize import TokenizedPrompt, cut
from shared.blocks import chain_keys, root_key
from shared.errors import InvalidRequest
from shared.ids import DEFAULT_TENANT, SessionId

MODEL_LEN, BLOCK = 20, 4
MODEL: Any = SimpleNamespace(
    card=SimpleNamespace(
        max_model_len=MODEL_LEN, block_tokens=BLOCK, fingerprint="f", short_rope_max=0
    ),
    adapter=None,
    adapter_hash="",
)
OWNER = Owner(tenant=DEFAULT_TENANT, session_id=SessionId("s"), cache_salt="c")
KEYS = chain_keys(root_key("f", DEFAULT_TENANT, "", "c"), list(range(30)), BLOCK)
PROMPT = TokenizedPrompt(text="t", tokens=list(range(30)), keys=KEYS, num_turns=3)


def cut_to(num_new: int = 5, **fields: Any) -> TokenizedPrompt:
    body = parse(CompletionBody, orjson.dumps({"model": "m", "prompt": "x", **fields}))
    asked = asyncio.run(completion_request(body, Origin())).generation
    return asyncio.run(cut(MODEL, OWNER, asked.truncation, num_new, PROMPT))


def test_the_end_is_kept_unless_the_side_is_named() -> None:
    assert cut_to() is PROMPT
    assert cut_to(truncate_prompt_tokens=30) is PROMPT
    assert cut_to(truncate_prompt_tokens=9).tokens == list(range(21, 30))
    assert cut_to(truncate_prompt_tokens=9, truncation_side="right").tokens == list(range(9))


def test_minus_one_leaves_room_for_the_reply() -> None:
    assert cut_to(num_new=5, truncate_prompt_tokens=-1).tokens == list(range(15, 30))


def test_keys_and_record_are_of_the_tokens_that_are_served() -> None:
    made = cut_to(truncate_prompt_tokens=9)
    root = root_key("f", DEFAULT_TENANT, "", "c")
    assert made.keys == chain_keys(root, made.tokens, BLOCK) and len(made.keys) == 2
    assert made.text == "", "the next turn's text never extends what was cut"
    assert made.num_turns == 3


def test_a_limit_of_the_whole_context_is_no_limit() -> None:
    made = cut_to(num_new=MODEL_LEN, truncate_prompt_tokens=-1)
    assert len(made.tokens) == MODEL_LEN - MODEL_LEN // ROOM_PARTS


def test_a_cut_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        cut_to(num_new=5, truncate_prompt_tokens=0)
    assert caught.value.param == "truncate_prompt_tokens"
