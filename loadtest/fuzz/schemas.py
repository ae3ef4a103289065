"""Schemas drawn by a seeded generator, and replies that are held to them: whatever tokens are
chosen of those that are allowed, the reply is a document that the schema validates, and no object
in it has a key twice.
"""

import json
import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator
from llguidance import LLTokenizer, TokenizerWrapper

from loadtest.fuzz.report import Report
from services.frontend.core import schemas
from services.frontend.core.structures import Structure, grammar_of
from services.worker.device.grammar.json_keys import KeyTracker
from services.worker.device.grammar.unique_keys import UniqueKeys
from shared.wire.grammar import compiled, reason_of, tokens_in

TOKENS_MAX = 400
REPLIES = 3  # to each schema
NAMES = ("a", "b", "ab", "x_a", "x_b", "name", "Größe", 'q"uote', "")
PATTERNS = ("^x_[ab]$", "^x_", "^[a-c]+$", "b$", "^[0-9]{2}-[0-9]{2}$", "^(a|ab|abc)$")
DEFINED = ("one", "two", "three")
FORMATS = ("date", "uuid", "ipv4", "password", "regex", "time")
PIECES = (
    b'","', b'":', b'{"', b'"a', b'"a"', b'"a":', b',"a":', b'"ab":1', b"x_", b'x_a"', b'"x_a":',
    b'\\"', b'"}', b'{"a":{"a":', b'{"a":1,"a":', b'"},"a":', b'":"', b'","b":', b"ab", b"na",
    b"\\u0061", b'me"', b'": ', b", ", b"1,", b"},",
)  # fmt: skip


class _Vocabulary:
    """The bytes, pieces of JSON as vocabularies have them, and an end."""

    tokens = (*(bytes([byte]) for byte in range(256)), *PIECES, b"<end>")
    eos_token_id = len(tokens) - 1
    bos_token_id = None
    special_token_ids = (eos_token_id,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


END = _Vocabulary.eos_token_id


def vocabulary() -> LLTokenizer:
    """Of tokens that hold much at once."""
    return LLTokenizer(TokenizerWrapper(_Vocabulary()))


def schema_of(rng: random.Random) -> Any:
    """Some schema, mostly of what is held; now and then one that is not, or is none."""
    made = _any(rng, 3)
    if not isinstance(made, dict):
        return made
    return made | {"$defs": {name: _any(rng, 2) for name in DEFINED}}


def _any(rng: random.Random, depth: int) -> Any:
    kinds: list[Callable[[random.Random, int], Any]] = [_string, _number, _literal, _flat]
    if depth:
        kinds += [_object, _object, _object, _array, _array, _several, _reference]
    made = rng.choice(kinds)(rng, depth - 1)
    if isinstance(made, dict) and rng.random() < 0.2:
        made |= rng.choice(
            [{"title": "x"}, {"deprecated": True}, {"x-y": {}}, {"examples": [1]}, {"$comment": ""}]
        )
    return made


def _string(rng: random.Random, _: int) -> Any:
    made: dict[str, Any] = {"type": "string"}
    if rng.random() < 0.4:
        made |= {"minLength": rng.randint(0, 3), "maxLength": rng.randint(3, 6)}
    elif rng.random() < 0.5:
        made["pattern"] = rng.choice(PATTERNS)
    elif rng.random() < 0.5:
        made["format"] = rng.choice(FORMATS)
    return made


def _number(rng: random.Random, _: int) -> Any:
    is_whole = rng.random() < 0.5
    made: dict[str, Any] = {"type": "integer" if is_whole else "number"}
    low = rng.choice([-1000, -7, -1, 0, 0, 1, 5, 99] + ([] if is_whole else [-2.5, 0.125, 1.75]))
    high = low + rng.choice([0, 1, 3, 50, 10**6, 2**53] + ([] if is_whole else [0.25, 0.5]))
    for name, value in (("inimum", low), ("aximum", high)):
        if rng.random() < 0.5:
            side = "m" + name if rng.random() < 0.6 else "exclusiveM" + name
            made[side] = value
    if rng.random() < 0.3:
        made["multipleOf"] = rng.choice([2, 3, 7, 10, 25, 256] + ([] if is_whole else [0.5, 0.25]))
    return made


def _literal(rng: random.Random, _: int) -> Any:
    values = [None, True, 0, -17, 2.5, 1e20, "", "é\n", 'a"b', [], [1, "x"], {}, {"a": {"b": 1}}]
    if rng.random() < 0.3:
        return {"const": rng.choice(values)}
    return {"enum": rng.sample(values, rng.randint(1, 4))}


def _flat(rng: random.Random, _: int) -> Any:
    return rng.choice([True, {}, {"type": ["null", "boolean"]}, {"type": "boolean"}, False])


def _object(rng: random.Random, depth: int) -> Any:
    names = rng.sample(NAMES, rng.randint(0, 4))
    made: dict[str, Any] = {}
    if rng.random() < 0.85:
        made["type"] = rng.choice(["object", ["object", "null"]])
    if names:
        made["properties"] = {name: _any(rng, depth) for name in names}
    if rng.random() < 0.6:
        made["required"] = (
            rng.sample(NAMES, 1) if rng.random() < 0.2 else names[: rng.randint(0, 3)]
        )
    if rng.random() < 0.3:
        patterns = rng.sample(PATTERNS, rng.choice([1, 1, 2]))
        made["patternProperties"] = {each: _any(rng, 0) for each in patterns}
    if rng.random() < 0.7:
        made["additionalProperties"] = False if rng.random() < 0.6 else _any(rng, 0)
    if rng.random() < 0.25:
        least = rng.randint(0, 3)
        made |= {"minProperties": least, "maxProperties": least + rng.randint(0, 2)}
    return made


def _array(rng: random.Random, depth: int) -> Any:
    made: dict[str, Any] = {"type": "array"}
    if rng.random() < 0.3:
        made["prefixItems"] = [_any(rng, depth) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.7:
        made["items"] = _any(rng, depth)
    if rng.random() < 0.4:
        least = rng.randint(0, 3)
        made |= {"minItems": least, "maxItems": least + rng.randint(0, 2)}
    return made


def _several(rng: random.Random, depth: int) -> Any:
    name = rng.choice(["anyOf", "anyOf", "oneOf", "allOf"])
    made = {name: [_any(rng, depth) for _ in range(rng.randint(1, 3))]}
    if rng.random() < 0.2 and isinstance(more := _object(rng, depth), dict):
        made |= more
    return made


def _reference(rng: random.Random, _: int) -> Any:
    made: dict[str, Any] = {"$ref": f"#/$defs/{rng.choice(DEFINED)}"}
    if rng.random() < 0.2:
        made["type"] = rng.choice(["object", "array", "string"])
    return made


def walk(
    schema: Any, tokenizer: LLTokenizer, unique: UniqueKeys, rng: random.Random
) -> tuple[str, bytes | None]:
    """A reply of tokens that are drawn of those that are allowed.

    Returns:
        Why there is none, and it; None: it has not come to its end.
    """
    try:
        grammar = grammar_of(Structure("schema", "json", schema))
        is_open = schemas.is_open(schemas.rewritten(schema))
    except ValueError as error:
        return str(error), None
    matcher, flaw = compiled(grammar, tokenizer)
    if matcher is None:
        return flaw, None
    keys, said = KeyTracker([b""]), b""
    for number in range(TOKENS_MAX):
        words = np.frombuffer(matcher.compute_bitmask(), np.int32)
        if is_open:
            words = unique.filtered(keys, matcher, words)
        if why := reason_of(matcher):
            return f"on the way: {why}", None
        allowed: list[int] = tokens_in(words.tobytes()).tolist()
        if not allowed:
            return f"nothing may follow {said!r}", said
        token = _chosen(allowed, rng, is_late=number > TOKENS_MAX // 4)
        if token == END:
            return "", said
        assert matcher.consume_token(token)
        unique.feed(keys, token)
        said += _Vocabulary.tokens[token]
    return "", None


def _chosen(allowed: list[int], rng: random.Random, *, is_late: bool) -> int:
    """Often the end or what closes something; text that any JSON has, rather than any byte."""
    for token in (END, *b'}]"'):
        if token in allowed and rng.random() < (0.9 if is_late else 0.3):
            return int(token)
    plain = [token for token in allowed if token > ord(" ") and token not in range(127, 256)]
    return rng.choice(plain if plain and rng.random() < 0.95 else allowed)


def tried(seeds: Iterable[int]) -> Report:
    """Some replies to a schema drawn by each seed, and what is wrong with them."""
    tokenizer, report = vocabulary(), Report()
    unique = UniqueKeys(tokenizer)
    for seed in seeds:
        rng = random.Random(seed)
        schema = schema_of(rng)
        for _ in range(REPLIES):
            why, said = walk(schema, tokenizer, unique, rng)
            if said is None:
                report.count("refused" if why else "without an end")
                if why.startswith("on the way"):
                    report.count(why)
                break
            flaw = why or flaw_in(schema, said)
            report.count("wrong" if flaw else "right")
            report.expect(not flaw, f"seed {seed}: {flaw[:200]}: {said[:200]!r}")
    return report


def flaw_in(schema: Any, said: bytes) -> str:
    """What is wrong with a reply; empty: nothing."""
    repeated: list[str] = []

    def member(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            repeated.append(str(pairs))
        return made

    try:
        document = json.loads(said, object_pairs_hook=member)
    except ValueError as error:
        return f"no JSON: {error}"
    if repeated:
        return f"a key repeats: {repeated[0]}"
    try:
        errors = [error.message for error in Draft202012Validator(schema).iter_errors(document)]
    except (OverflowError, RecursionError):  # the validator's: huge numbers, endless references
        return ""
    return errors[0] if errors else ""
