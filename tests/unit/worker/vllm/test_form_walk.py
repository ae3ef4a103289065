"""Replies walked along their forms as vLLM does it."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.core.vllm.forms import Form
from services.worker.device.grammar.unique_keys import UniqueKeys
from services.worker.vllm.form_walk import FormWalk
from shared.wire.grammar import byte_tokenizer

TOKENIZER = byte_tokenizer()
UNIQUE = UniqueKeys(TOKENIZER)
END = TOKENIZER.eos_token
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "w": {"enum": ["x", "yes"]}},
    "required": ["n", "w"],
    "additionalProperties": False,
}
GRAMMARS = [
    "start: /[a-c]{2,4}-[0-9]+/",
    'start: "red" | "green" | "greener"',
    json.dumps({"grammars": [{"json_schema": SCHEMA}]}),
]


def walk(grammar: str, generated: bytes = b"", *, unique: bool = False) -> FormWalk:
    form = Form(grammar=grammar, generated=list(generated), json_after=[""] if unique else [])
    return FormWalk(form, TOKENIZER, UNIQUE if unique else None)


def allowed(held: FormWalk) -> list[int]:
    row = np.full(-(-TOKENIZER.vocab_size // 32) + 1, -1, np.int32)  # a larger vocabulary's
    held.fill(row)
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def reply(held: FormWalk, draw: random.Random, most: int = 60) -> list[int]:
    """One within the form."""
    tokens: list[int] = []
    while len(tokens) < most and tokens[-1:] != [END]:
        tokens.append(draw.choice(allowed(held)))
        assert held.accept(tokens[-1:])
    return tokens


@settings(max_examples=40, deadline=None)
@given(grammar=st.sampled_from(GRAMMARS), seed=st.integers(0, 1 << 30), data=st.data())
def test_a_turn_goes_on_where_it_was(grammar: str, seed: int, data: st.DataObject) -> None:
    tokens = reply(walk(grammar), random.Random(seed))
    said = tokens[:-1] if tokens[-1] == END else tokens
    cut = data.draw(st.integers(0, len(said)))
    straight, replaced, went_back = walk(grammar), walk(grammar, bytes(said[:cut])), walk(grammar)
    assert straight.accept(said[:cut]) and went_back.accept(tokens)
    went_back.take_back(len(tokens) - cut)
    for token in [*said[cut:], None]:
        assert allowed(replaced) == allowed(went_back) == allowed(straight)
        if token is not None:
            assert replaced.num_allowed([token, token]) >= 1
            assert all(each.accept([token]) for each in (straight, replaced, went_back))


def test_tokens_of_another_form_are_refused() -> None:
    with pytest.raises(ValueError, match="generated before"):
        walk(GRAMMARS[1], b"blue")
    with pytest.raises(ValueError, match="unknown name"):
        walk("start: foo")


def test_behind_its_end_there_are_ends_alone() -> None:
    held = walk(GRAMMARS[1])
    assert held.accept([*b"red"]) and allowed(held) == [END]
    assert held.accept([END]) and allowed(held) == [END]
    assert held.accept([END]) and held.num_allowed([97]) == 0


def test_a_token_outside_of_it_is_not_taken() -> None:
    held = walk(GRAMMARS[1])
    assert not held.accept([*b"rex"])


def test_keys_do_not_repeat() -> None:
    grammar = json.dumps(
        {"grammars": [{"json_schema": {"type": "object", "additionalProperties": True}}]}
    )
    said = b'{"a": 1, "a'
    assert ord('"') in allowed(walk(grammar, said))
    held = walk(grammar, said, unique=True)
    assert ord('"') not in allowed(held)
    assert held.accept([*b'b": 2, "a'])
    assert ord('"') not in allowed(held)
    held.take_back(len(b'b": 2, "a'))
    assert ord('"') not in allowed(held) and held.accept([*b'c": 3'])


def test_where_nothing_can_be_said_the_turn_fails() -> None:
    """Here every key that the form allows is taken, and one more has to come."""
    keys = {"type": "object", "patternProperties": {"^[ab]$": {"const": 1}}, "minProperties": 3}
    grammar = json.dumps({"grammars": [{"json_schema": {**keys, "additionalProperties": False}}]})
    held = walk(grammar, b'{"a":1,"b":1,"', unique=True)
    assert allowed(held) == [END] and not held.accept([END])
