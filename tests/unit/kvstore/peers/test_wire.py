"""Frames come back as they were, and bytes that are none raise one error and take no memory."""

import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.kvstore.peers.proof import Side, is_proven, new_nonce, prove
from services.kvstore.peers.wire import (
    ANSWER_BYTES,
    HELLO_BYTES,
    HOST_ID_BYTES_MAX,
    KEYS_MAX,
    PAGE_BYTES_MAX,
    PROOF_BYTES,
    REQUEST_BYTES_MAX,
    Answer,
    Hello,
    Request,
    Status,
    WireError,
    pack_answer,
    pack_hello,
    pack_request,
    read_request,
    unpack_answer,
    unpack_hello,
)
from shared.blocks import BlockKey

U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
CASES = settings(max_examples=50, deadline=None)
NONCES = st.binary(min_size=32, max_size=32)
HELLOS = st.builds(
    Hello,
    st.text("aZ9-é✓", min_size=1, max_size=HOST_ID_BYTES_MAX // 3),
    NONCES,
)
KEYS = st.integers(1, KEYS_MAX).map(
    lambda count: [BlockKey(bytes([at] * 16)) for at in range(count)]
)
REQUESTS = st.builds(
    Request, U32, U16, st.integers(1, PAGE_BYTES_MAX), st.integers(-(2**31), 2**31 - 1), U32, KEYS
)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    first = draw(st.integers(0, KEYS_MAX - 1))
    status = draw(st.sampled_from(Status))
    most = 1 if status is Status.JUDGED else KEYS_MAX - first
    return Answer(draw(U32), first, draw(st.integers(1, most)), status)


@given(HELLOS)
@CASES
def test_a_hello_comes_back(hello: Hello) -> None:
    raw = pack_hello(hello)
    assert len(raw) == HELLO_BYTES
    assert unpack_hello(raw) == hello


@given(REQUESTS, st.binary(max_size=40))
@CASES
def test_a_request_comes_back_when_all_of_it_is_there(request: Request, more: bytes) -> None:
    raw = pack_request(request)
    assert len(raw) <= REQUEST_BYTES_MAX
    assert read_request(raw + more) == (request, len(raw))
    for end in {0, 1, len(raw) // 2, len(raw) - 1}:
        assert read_request(raw[:end]) is None


@given(answers())
@CASES
def test_an_answer_comes_back(answer: Answer) -> None:
    raw = pack_answer(answer)
    assert len(raw) == ANSWER_BYTES
    assert unpack_answer(raw) == answer


@given(st.binary(max_size=2 * REQUEST_BYTES_MAX), st.sampled_from([b"", b"R", b"A", b"SYMPEERS"]))
@CASES
def test_any_bytes_are_read_or_refused(garbage: bytes, begin: bytes) -> None:
    raw = begin + garbage
    for read, size in (
        (read_request, len(raw)),
        (unpack_answer, ANSWER_BYTES),
        (unpack_hello, HELLO_BYTES),
    ):
        tracemalloc.start()
        try:
            read(raw[:size].ljust(size, b"\0"))
        except WireError:
            pass
        finally:
            _, peak_bytes = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert peak_bytes < 64 * 1024


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, b"X"),  # no kvstore
        (8, b"\2"),  # another version
        (10, b"\0\0"),  # no host id
        (10, struct.pack("<H", HOST_ID_BYTES_MAX + 1)),
        (12, b"\xff"),  # no text
        (12 + 9, b"x"),  # behind the host id
    ],
)
def test_a_hello_of_somebody_else_is_refused(at: int, value: bytes) -> None:
    raw = bytearray(pack_hello(Hello("some host", bytes(32))))
    raw[at : at + len(value)] = value
    with pytest.raises(WireError):
        unpack_hello(bytes(raw))


@pytest.mark.parametrize(
    "request_",
    [
        Request(1, 0, 0, 0, 0, [BlockKey(bytes(16))]),
        Request(1, 0, PAGE_BYTES_MAX + 1, 0, 0, [BlockKey(bytes(16))]),
        Request(1, 0, 1, 0, 0, []),
        Request(1, 0, 1, 0, 0, [BlockKey(bytes(16))] * (KEYS_MAX + 1)),
    ],
)
def test_a_request_beyond_its_limits_is_refused_before_all_of_it_came(request_: Request) -> None:
    with pytest.raises(WireError):
        read_request(pack_request(request_)[:20])


@pytest.mark.parametrize(
    "answer",
    [
        Answer(1, 0, 0, Status.PAGE),
        Answer(1, KEYS_MAX, 1, Status.PAGE),
        Answer(1, 1, KEYS_MAX, Status.MISSING),
        Answer(1, 0, 2, Status.JUDGED),
        Answer(1, 0, 1, 9),  # type: ignore[arg-type]
    ],
)
def test_an_answer_that_cannot_be_is_refused(answer: Answer) -> None:
    with pytest.raises(WireError):
        unpack_answer(pack_answer(answer))


@given(HELLOS, HELLOS, NONCES, st.binary(min_size=1), st.sampled_from(Side))
@CASES
def test_a_proof_holds_for_one_side_of_one_connection(
    client: Hello, server: Hello, nonce: bytes, secret: bytes, side: Side
) -> None:
    proof = prove(secret, side, client, server)
    other = Side.CLIENT if side is Side.SERVER else Side.SERVER
    assert len(proof) == PROOF_BYTES
    assert is_proven(proof, secret, side, client, server)
    assert not is_proven(proof, secret, other, client, server)
    assert not is_proven(proof, secret + b"x", side, client, server)
    for one in (client, server):
        if one.nonce != nonce:
            changed = Hello(one.host_id, nonce)
            pair = (changed, server) if one is client else (client, changed)
            assert not is_proven(proof, secret, side, *pair)
    assert not is_proven(proof, secret, side, Hello(client.host_id + "x", client.nonce), server)
    assert not is_proven(proof[:-1], secret, side, client, server)


def test_nonces_are_new() -> None:
    assert new_nonce() != new_nonce()
