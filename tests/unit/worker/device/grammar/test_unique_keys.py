"""Keys of objects do not repeat, whatever tokens a vocabulary has for them."""

import doctest
import json
from random import Random
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher

from loadtest.fuzz.schemas import PIECES, flaw_in, vocabulary, walk
from services.frontend.core.structures import Structure, grammar_of
from services.worker.device.grammar import json_keys
from services.worker.device.grammar.json_keys import KeyTracker
from services.worker.device.grammar.unique_keys import UniqueKeys
from shared.wire.grammar import matcher_of, tokens_in

TOKENIZER = vocabulary()
UNIQUE = UniqueKeys(TOKENIZER)


@pytest.mark.parametrize(
    ("text", "is_unique"),
    [
        ('{"a": 1, "b": {"a": 1}, "c": [{"a": 1}, {"a": 1}]}', True),
        ('{"a": 1, "a": 2}', False),
        ('{"a": "\\"}", "b": "{", "a": 2}', False),
        ('{"a": 1, "\\u0061": 2}', False),
        ('{"\\"": 1, "\\\\": 2, "\\\\\\"": 3}', True),
        ('[{"a": {"b": 1}, "b": 1, "a": 1}]', False),
        ('{"é": 1, "\\u00e9": 1}', False),
        ('{"a": ",", "b": ["a", "b", "a"]}', True),
        ('{"": 1, "": 2}', False),
    ],
)
def test_a_tracker_knows_what_repeats(text: str, is_unique: bool) -> None:
    for size in (1, 3, 100):
        keys, data = KeyTracker([b""]), text.encode()
        told = [keys.feed(data[at : at + size]) for at in range(0, len(data), size)]
        assert all(told) is is_unique
        assert not keys.open and not keys.in_json


def test_json_is_looked_for_behind_marks() -> None:
    keys = KeyTracker([b"<call>", b"</think>"])
    assert keys.feed(b'{"a": "a": <cal <call>\n{"name": "<call>", "x": {"a": 1}}\n</call>')
    assert not keys.in_json
    assert not keys.feed(b'so: " <call>{"a": 1, "a"')
    keys.feed(b"", is_special=True)
    assert not keys.in_json
    assert keys.feed(b'</think>7 {"a": 1, "a": 2}'), "it was a number, and this is text"
    assert not keys.feed(b'<call>"{" <call>[{"a": 1, "a"')


@pytest.mark.parametrize(
    ("schema", "num"),
    [
        (
            {
                "type": "object",
                "patternProperties": {"^x_[ab]$": {"const": 1}},
                "additionalProperties": False,
                "minProperties": 2,
                "maxProperties": 2,
            },
            2,
        ),
        (
            {
                "type": "object",
                "patternProperties": {"^(a|ab|abc)$": {"const": 1}},
                "additionalProperties": False,
                "minProperties": 3,
            },
            3,
        ),
        ({"type": "object", "minProperties": 5, "additionalProperties": {"const": 1}}, 5),
        (
            {
                "type": "object",
                "properties": {"a": {"const": 1}},
                "additionalProperties": {"const": 1},
            },
            0,
        ),
    ],
)
def test_every_key_that_is_left_may_come_and_no_other(schema: Any, num: int) -> None:
    for seed in range(8):
        why, said = walk(schema, TOKENIZER, UNIQUE, Random(seed))
        assert why == ""
        if said is not None:
            assert flaw_in(schema, said) == "" and len(json.loads(said)) >= num


def test_what_repeats_is_taken_out_of_a_mask_and_nothing_else() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "object"}}
    grammar = grammar_of(Structure("s", "json", schema, ""))
    for said in (
        '{"a":{"ab":1},',
        '{"a":{},"',
        '{"a":{},"x_a":{"na',
        '{"ab":{},"a',
        '{"a":{"x_a":1',
    ):
        matcher, keys = matcher_of(grammar, TOKENIZER), KeyTracker([b""])
        assert matcher.consume_tokens(list(said.encode())) and keys.feed(said.encode())
        words = np.frombuffer(matcher.compute_bitmask(), np.int32)
        before = set(tokens_in(words.tobytes()).tolist())
        after = set(tokens_in(UNIQUE.filtered(keys, matcher, words).tobytes()).tolist())
        repeating = {token for token in before if not UNIQUE.feed(keys.copy(), token)}
        assert before - after == repeating, said
    assert len(PIECES) > len(repeating)


def test_space_that_has_to_come_is_no_dead_end() -> None:
    """As before a call's arguments, whose key is the only one left."""
    grammar = LLMatcher.grammar_from_lark(
        'start: "{\\"name\\": 1, \\"arguments\\": " args "}"\nargs: %json {"type": "object"}'
    )
    matcher, keys = matcher_of(grammar, TOKENIZER), KeyTracker([b""])
    for byte in b'{"name": 1, "arguments": {"a" : 1, "b": 1}}':
        words = np.frombuffer(matcher.compute_bitmask(), np.int32)
        allowed = tokens_in(UNIQUE.filtered(keys, matcher, words).tobytes()).tolist()
        assert byte in allowed
        assert matcher.consume_token(byte) and UNIQUE.feed(keys, byte)


def test_examples() -> None:
    assert doctest.testmod(json_keys) == (1, 0) or doctest.testmod(json_keys).failed == 0
