"""Heads, chunks and trailers: what the parser gets, and where a request is refused."""

from itertools import pairwise

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.frontend.core.http.framing import (
    CHUNK_LINE_BYTES_MAX,
    FREE_FRAMING_BYTES,
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    REQUEST_LINE_BYTES_MAX,
    Framing,
)
from shared.errors import InvalidRequest

START = b"POST /v1/x HTTP/1.1\r\n"
CHUNKED = START + b"Transfer-Encoding: chunked\r\n\r\n"


class Reader:
    """A parser behind a `Framing`, and what it made of the requests."""

    def __init__(self) -> None:
        self.framing = Framing()
        self.parser = httptools.HttpRequestParser(self)
        self.requests: list[tuple[bytes, list[tuple[bytes, bytes]], bytes]] = []
        self.verdict: int | str | None = None
        self.num_taken = 0

    def feed(self, data: bytes) -> None:
        at = 0
        while at < len(data) and self.verdict is None:
            try:
                piece, end = self.framing.take(data, at)
                if piece:
                    self.parser.feed_data(piece)
            except InvalidRequest as error:
                self.verdict = error.http_status
            except (httptools.HttpParserError, httptools.HttpParserUpgrade):
                self.verdict = "no http"
            else:
                self.num_taken += end - at
                at = end

    def on_message_begin(self) -> None:
        self.url, self.body = b"", b""
        self.headers: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        named = dict(self.headers)
        is_chunked = b"transfer-encoding" in named
        self.framing.on_head(None if is_chunked else int(named.get(b"content-length", b"0")))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.framing.on_end()
        self.requests.append((self.url, self.headers, self.body))


def read(data: bytes, cuts: list[int] | None = None) -> Reader:
    """What is made of `data` if it comes in pieces that end at `cuts`."""
    reader = Reader()
    for start, end in pairwise(
        [0, *sorted(cut % (len(data) + 1) for cut in cuts or []), len(data)]
    ):
        reader.feed(data[start:end])
    return reader


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


BOMBS = {
    "header": (START + b"X-A: " + b"a" * 1_000_000, 431, HEAD_BYTES_MAX),
    "name": (START + b"a" * 1_000_000, 431, HEAD_BYTES_MAX),
    "headers": (START + b"a:b\r\n" * 200_000, 431, HEAD_BYTES_MAX),
    "url": (b"GET /" + b"a" * 1_000_000, 414, REQUEST_LINE_BYTES_MAX),
    "line breaks": (b"\r\n" * 500_000, 414, REQUEST_LINE_BYTES_MAX),
    "trailers": (CHUNKED + chunk(b"{") + b"0\r\n" + b"a:b\r\n" * 200_000, 431, HEAD_BYTES_MAX),
    "trailer": (CHUNKED + chunk(b"{") + b"0\r\nX: " + b"a" * 1_000_000, 431, HEAD_BYTES_MAX),
    "extension": (CHUNKED + b"1;" + b"a" * 1_000_000, 400, CHUNK_LINE_BYTES_MAX),
    "size": (CHUNKED + b"0" * 1_000_000, 400, CHUNK_LINE_BYTES_MAX),
    "tiny chunks": (CHUNKED + chunk(b"x") * 200_000, 400, 2 * FREE_FRAMING_BYTES),
    "extensions": (CHUNKED + chunk(b"x", b";a=b" * 50) * 5_000, 400, 2 * FREE_FRAMING_BYTES),
    "both": (CHUNKED + chunk(b"x" * 64, b";a=b" * 50) * 5_000, 400, 2 * FREE_FRAMING_BYTES),
}


@pytest.mark.parametrize("kind", BOMBS)
@given(cuts=st.lists(st.integers(0, 100_000), max_size=8))
@settings(max_examples=10)
def test_what_is_no_body_is_refused_at_the_same_byte_however_it_is_cut(
    kind: str, cuts: list[int]
) -> None:
    data, status, num_bytes = BOMBS[kind]
    data = data[:100_000]
    reader, whole = read(data, cuts), read(data)
    assert reader.verdict == whole.verdict == status
    assert reader.requests == []
    assert reader.num_taken <= len(CHUNKED) + num_bytes


HEADERS = st.lists(
    st.tuples(
        st.sampled_from([b"X-A", b"upgrade", b"Upgrade", b"Connection", b"Host", b"uPGRADES"]),
        st.sampled_from([b"", b"h2c", b"Upgrade", b"keep-alive", b"a" * 2_000]),
    ),
    max_size=5,
)
BODIES = st.one_of(
    st.none(), st.binary(max_size=40), st.lists(st.binary(min_size=1, max_size=40), max_size=3)
)


def written(headers: list[tuple[bytes, bytes]], body: bytes | list[bytes] | None) -> bytes:
    head = START + b"".join(b"%b: %b\r\n" % header for header in headers)
    if body is None:
        return head + b"\r\n"
    if isinstance(body, bytes):
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunks = b"".join(chunk(data, b";x=y") for data in body)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nX-Trailer: 1\r\n\r\n"


@settings(max_examples=50)
@given(
    st.lists(st.tuples(HEADERS, BODIES), min_size=1, max_size=4),
    st.lists(st.integers(0, 20_000), max_size=20),
    st.sampled_from([b"", b"\r\n", b"\r\n\r\n"]),
)
def test_requests_are_what_was_sent_however_they_are_cut(
    requests: list[tuple[list[tuple[bytes, bytes]], bytes | list[bytes] | None]],
    cuts: list[int],
    between: bytes,
) -> None:
    reader = read(between.join(written(*request) for request in requests) + between, cuts)
    assert reader.verdict is None
    assert len(reader.requests) == len(requests)
    for (_, headers, body), (sent_headers, sent_body) in zip(
        reader.requests, requests, strict=True
    ):
        kept = [(n.lower(), v) for n, v in sent_headers if n.lower() != b"upgrade"]
        assert headers[: len(kept)] == kept and (b"upgrade" not in dict(headers))
        sent = b"".join(sent_body) if isinstance(sent_body, list) else sent_body or b""
        assert body == sent
    assert reader.framing.is_between == (not between)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6))
def test_whatever_comes_has_a_verdict_that_no_cut_changes(data: bytes, cuts: list[int]) -> None:
    for start in (b"", START, CHUNKED):
        reader, whole = read(start + data, cuts), read(start + data)
        assert reader.verdict == whole.verdict
        assert reader.requests == whole.requests


@pytest.mark.parametrize("spare", [0, 1])
def test_limits_are_exact(spare: int) -> None:
    fills = START + b"X: " + b"a" * (HEAD_BYTES_MAX - len(START) - 7 + spare) + b"\r\n\r\n"
    assert read(fills).verdict == (431 if spare else None)
    many = START + b"a:b\r\n" * (HEADERS_MAX + spare) + b"\r\n"
    assert read(many).verdict == read(many, [30]).verdict == (431 if spare else None)
    line = b"GET /%b HTTP/1.1\r\n\r\n"
    long = line % (b"a" * (REQUEST_LINE_BYTES_MAX - len(line) + 4 + spare))
    assert read(long).verdict == read(long, [30]).verdict == (414 if spare else None)
    ample = CHUNKED + chunk(b"x" * (48 - 20 * spare)) * 8_000 + b"0\r\n\r\n"
    assert read(ample).verdict == (400 if spare else None)


def test_headers_come_to_the_parser_whole() -> None:
    framing, data = Framing(), START + b"X-A: " + b"a" * 1000
    pieces = [framing.take(data[at : at + 1], 0)[0] for at in range(len(data))]
    assert b"".join(pieces) == START
    assert framing.take(b"\r\n", 0)[0] == b"X-A: " + b"a" * 1000 + b"\r\n"
