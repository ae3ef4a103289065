"""Requests that `bench fuzz` makes: the same for the same seed, and as wrong as they should be."""

import asyncio
import random

import pytest

from loadtest.fuzz.damage import KINDS as DAMAGES
from loadtest.fuzz.damage import PAGE_BYTES, damage
from loadtest.fuzz.grammar import value_of
from loadtest.fuzz.malformed import draft_of, endpoints_of
from loadtest.fuzz.mutation import (
    GROWN_BYTES_MAX,
    LENGTH_MAX,
    Raw,
    mutate_bytes,
    mutate_value,
    tame,
    written,
)
from loadtest.fuzz.poisons import KINDS, make
from loadtest.raw_http import Answer, events, read_answer

SEEDS = range(2000)
BODY = {
    "type": "object",
    "required": ["model", "messages"],
    "properties": {
        "model": {"type": "string", "minLength": 1},
        "n": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 128}, {"type": "null"}]},
        "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "role": {"enum": ["user", "tool"]},
        "messages": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"const": "hi"}},
        "logit_bias": {"type": "object", "additionalProperties": {"type": "number", "maximum": 2}},
    },
}
API = {
    "paths": {
        "/v1/chat/completions": {
            "post": {"requestBody": {"content": {"application/json": {"schema": BODY}}}}
        },
        "/v1/rerank": {"post": {"requestBody": {"content": {"application/json": {"schema": {
            "type": "object"}}}}}},
        "/v1/sessions/{session_id}": {"get": {}, "delete": {}},
        "/v1/house/events": {"get": {"responses": {"200": {"content": {
            "text/event-stream": {}}}}}},
    }
}  # fmt: skip


def test_values_are_as_the_schema_says() -> None:
    for seed in SEEDS:
        value = value_of(BODY, random.Random(seed))
        assert isinstance(value["model"], str) and value["model"]
        assert value["messages"] in (["hi"], ["hi", "hi"])
        assert value.get("n") is None or 1 <= value["n"] <= 128
        assert 0 < value.get("top_p", 1) <= 1
        assert value.get("role", "user") in ("user", "tool")
        assert all(bias <= 2 for bias in value.get("logit_bias", {}).values())


def test_mutations_can_be_written_and_leave_alone_what_they_are_given() -> None:
    messages = [{"role": "user", "content": "\u00e9"}]
    value = {"model": "m", "messages": messages, "n": 1, "seed": 2.5}
    before = written(value)
    changed = 0
    for seed in SEEDS:
        rng = random.Random(seed)
        once = mutate_value(value, rng, ["tools"])
        twice = mutate_value(once, rng, ["tools"])
        assert written(value) == before
        changed += written(once) != before and written(twice) != before
        assert isinstance(mutate_bytes(before, rng), bytes)
    assert changed > len(SEEDS) * 0.9


def test_raw_numbers_and_texts_stand_as_they_are() -> None:
    assert written({"a": [Raw('"\\ud800"'), 1], "b": Raw("{")}) == b'{"a": ["\\ud800", 1], "b": {}'


def test_lengths_that_take_long_are_shortened() -> None:
    asked = {"max_tokens": 500, "max_completion_tokens": 2**31, "n": 500}
    assert tame(asked) == {"max_tokens": LENGTH_MAX, "max_completion_tokens": 2**31, "n": 500}
    assert tame([1]) == [1]


def test_a_request_is_known_by_seed_and_number() -> None:
    endpoints = endpoints_of(API, {"generate": "demo", "rerank": "r"})
    paths = {endpoint.path for endpoint in endpoints}
    assert {"/v1/chat/completions", "/v2/rerank", "/v1/sessions/{session_id}", "/"} <= paths
    assert "/v1/house/events" not in paths, "an answer without an end is no fault"
    drafts = [draft_of(number, 7, 80, endpoints).data() for number in SEEDS]
    assert drafts == [draft_of(number, 7, 80, endpoints).data() for number in SEEDS]
    assert max(map(len, drafts)) < 20 * GROWN_BYTES_MAX
    assert drafts != [draft_of(number, 8, 80, endpoints).data() for number in SEEDS]
    assert sum(b'"model": "demo"' in data for data in drafts) > len(SEEDS) // 5


@pytest.mark.parametrize("name", sorted(KINDS.keys() - {"body-too-large"}))
def test_poisons_are_seeded(name: str) -> None:
    made = [make(name, f"{seed}", "m") for seed in range(3)]
    assert made == [make(name, f"{seed}", "m") for seed in range(3)]
    assert len(KINDS) >= 20


def tree_file() -> bytearray:
    """16 pages that say their numbers; the first five belong to the trees."""
    content = bytearray(random.Random(0).randbytes(16 * PAGE_BYTES))
    for number in range(5):
        start = number * PAGE_BYTES
        content[start : start + 12] = number.to_bytes(8, "little") + bytes([0, 0, 2, 0])
    return content


def test_damage_of_every_kind_is_done_and_told() -> None:
    told = set()
    for seed in SEEDS:
        content = tree_file()
        what = damage(content, random.Random(seed))
        told.add(what.split()[0])
        assert len(content) <= 16 * PAGE_BYTES
        again = tree_file()
        assert (damage(again, random.Random(seed)), again) == (what, content)
    assert told == DAMAGES.keys()


def fed(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return reader


def test_answers_are_read_however_they_are_framed() -> None:
    cases: list[tuple[bytes, tuple[int, bytes, bool]]] = [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", (200, b"hi", True)),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 400 No\r\n\r\nx", (400, b"x", True)),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
            (200, b"hi", True),
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n", (200, b"hi", False)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi", (200, b"", False)),
        (b"", (0, b"", False)),
        (b"no HTTP\r\n\r\n", (0, b"", False)),
    ]

    async def scenario() -> list[Answer]:
        return [await read_answer(fed(data)) for data, _ in cases]

    answers = asyncio.run(scenario())
    for (_, expected), answer in zip(cases, answers, strict=True):
        assert (answer.status, answer.body, answer.is_whole) == expected


def test_events_are_read_until_the_last_chunk() -> None:
    """Wherever the chunks end, and not beyond them."""
    data = b"6\r\ndata: \r\n4\r\n{}\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\ndata: later\n"
    headers = {b"transfer-encoding": b"chunked"}

    async def scenario() -> list[bytes]:
        return [event async for event in events(fed(data), headers)]

    assert asyncio.run(scenario()) == [b"{}", b"[DONE]"]
