"""What goes wrong with a request: in its JSON, in its bytes, in its head.

Everything is drawn by a seeded generator. Numbers that JSON has and Python has not are `Raw`.
"""

import json
import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

SPLICE = "\ue000"  # of no text that is drawn: stands around what is written as it is
GROWN_BYTES_MAX = 200_000
LENGTHS = ("max_tokens", "max_completion_tokens")
LENGTH_MAX = 4  # so that nothing takes long
LENGTH_REFUSED = 9000  # does not fit the demo model
METHODS = ("GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "FOO", "post")
RAW = (
    "1e400", "-1e400", "1e-400", "NaN", "Infinity", "-Infinity", "0x10", "01", "1.", ".5", "-",
    "9" * 5000, "1" + "0" * 400, '"\\ud800"', '"\\u0000"', '"\\udfff\\ud800"', "tru", "'a'", "",
    "[" * 300 + "]" * 300, "[" * 5000, '{"a":' * 300 + "1" + "}" * 300, "// a",
)  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.0, 1.5, -0.0, 128, 129, 260, 2**31 - 1, 2**31, 2**53 + 1,
    2**63 - 1, 2**63, -(2**63) - 1, 5e-324, 1e-40, 1e308, "", "5", "null", "a" * 257, "a" * 100_000,
    "\x00", "\u202e\u200b", "\U0001f98a" * 300, "%s%n{}{{1/0}}", "../../etc/passwd", "a\r\nb: c",
    [], {}, [[]], [None], [{}], {"": {}}, [0] * 5000, ["a"] * 2000, {"a": 1, "b": [2]}, "*.>",
)  # fmt: skip
HEADERS = (
    b"X-Session-Id: " + b"a" * 257, b"X-Session-Id: *.>", b"X-Session-Id: \xff\xfe",
    b"X-SLO-Ms: nan", b"X-SLO-Ms: -1", b"X-SLO-Ms: 1e999", b"X-SLO-TTFT-Ms: abc",
    b"X-SLO-TPOT-Ms: 0",
    b"X-SLO-Ms: 0.000001", b"X-SLO-Ms: 3600001", b"X-Request-Id: " + b"r" * 10_000,
    b"X-Request-Id: \xf0\x9f\xa6\x8a", b"Authorization: Bearer \xff", b"Authorization: Basic !!!",
    b"traceparent: " + b"0" * 5000, b"Accept-Encoding: br;q=nan", b"Content-Encoding: gzip",
    b"Content-Type: text/plain", b"Content-Type: application/json; charset=utf-16",
    b"Origin: http://evil.example", b"Sec-Fetch-Site: cross-site", b"Cookie: " + b"c" * 5000,
    b"Host: evil.example", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked",
    b"Content-Length: 3", b"Content-Length: -1", b"Content-Length: 1e3", b"Upgrade: websocket",
    b"Connection: upgrade, HTTP2-Settings", b"Expect: 100-continue", b"Range: bytes=0-0",
    b"A: " + b"a" * 70_000, b"no colon", b": no name", b" folded", b"\x00: \x00",
)  # fmt: skip


@dataclass(slots=True)
class Draft:
    """A request before it is bytes.

    Attributes:
        version: what stands behind the path.
        is_broken: it may be no HTTP any more, so that hanging up is an answer, too.
    """

    method: str
    path: str
    body: bytes | None
    headers: list[bytes]
    version: str = "HTTP/1.1"
    is_broken: bool = False

    def data(self) -> bytes:
        """As it is sent."""
        first = f"{self.method} {self.path} {self.version}".encode(errors="surrogateescape")
        return b"\r\n".join([first, *self.headers]) + b"\r\n\r\n" + (self.body or b"")


@dataclass(frozen=True, slots=True)
class Raw:
    """Text that stands for a value, JSON or not."""

    text: str


def written(value: Any) -> bytes:
    """JSON, with what is `Raw` as it is.

    >>> written({"a": [Raw("1e400")]})
    b'{"a": [1e400]}'
    """
    text = json.dumps(value, default=lambda raw: SPLICE + raw.text + SPLICE, ensure_ascii=False)
    parts = text.split(SPLICE)
    for at in range(1, len(parts), 2):
        parts[at - 1] = parts[at - 1].removesuffix('"')
        parts[at + 1] = parts[at + 1].removeprefix('"')
        parts[at] = json.loads(f'"{parts[at]}"')
    return "".join(parts).encode(errors="surrogatepass")


def mutate_value(value: Any, rng: random.Random, names: list[str]) -> Any:
    """The value with something else at one place.

    Args:
        names: fields that could stand in an object.
    """
    places = _places(value)
    path = rng.choice(places)
    if not path:
        return _odd(value, rng)
    value = deepcopy(value)  # what was drawn may be shared
    inner = value
    for step in path[:-1]:
        inner = inner[step]
    last = path[-1]
    kind = rng.choice(["odd", "odd", "odd", "drop", "add", "repeat"])
    if kind == "drop":
        del inner[last]
    elif kind == "add" and isinstance(inner, dict):
        inner[rng.choice(names or ["a"])] = _odd(None, rng)
    elif kind == "repeat" and isinstance(inner, list):
        inner *= _times(rng.choice([2, 50, 1500]), len(written(inner)))
    else:
        inner[last] = _odd(inner[last], rng)
    return value


def tame(value: Any) -> Any:
    """The body with a length that takes no time, or none at all."""
    for name in long_fields(value):
        value[name] = LENGTH_MAX
    return value


def long_fields(value: Any) -> list[str]:
    """Fields of a body that ask for a long reply.

    >>> long_fields({"max_tokens": 500}), long_fields({"max_tokens": 2**31}), long_fields([])
    (['max_tokens'], [], [])
    """
    asked = {name: value.get(name) for name in LENGTHS} if isinstance(value, dict) else {}
    return [
        name
        for name, length in asked.items()
        if isinstance(length, int | float) and LENGTH_MAX < length < LENGTH_REFUSED
    ]


def mutate_bytes(body: bytes, rng: random.Random) -> bytes:
    """The body with damaged bytes."""
    if not body:
        return rng.randbytes(rng.randint(1, 20))
    at = rng.randrange(len(body))
    until = min(len(body), at + rng.choice([1, 5, 50]))
    return rng.choice(_DAMAGES)(body, at, until, rng)


def _flip(body: bytes, at: int, until: int, rng: random.Random) -> bytes:
    flipped = bytearray(body)
    for _ in range(rng.choice([1, 1, 8])):
        flipped[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def _double_key(body: bytes, at: int, until: int, rng: random.Random) -> bytes:
    key = rng.choice([b'"model"', b'"messages"', b'"temperature"', b'"stream"', b'"n"'])
    return body.replace(b"{", b"{" + key + b": " + rng.choice([b"null", b"1", b'"a"']) + b", ", 1)


_DAMAGES: tuple[Callable[[bytes, int, int, random.Random], bytes], ...] = (
    _flip,
    _flip,
    _double_key,
    lambda body, at, until, rng: body[:at],
    lambda body, at, until, rng: body[at:],
    lambda body, at, until, rng: body[:at] + body[until:],
    lambda body, at, until, rng: body[:until] + body[at:],
    lambda body, at, until, rng: body[:at] + rng.randbytes(until - at) + body[until:],
    lambda body, at, until, rng: body[:at] + rng.choice(
        [b"\xff", b"\xed\xa0\x80", b"\x00", b"\xef\xbb\xbf", b"\\", b'"', b"{", b"\xf0\x9f"]
    ) + body[at:],
    lambda body, at, until, rng: b"\xef\xbb\xbf" + body,
    lambda body, at, until, rng: body + rng.choice([b"}", b"{}", b"\x00", b"]", b" " * 99_999]),
    lambda body, at, until, rng: body.decode(errors="replace").encode("utf-16"),
    lambda body, at, until, rng: rng.choice([b"", b"[]", b"null", b"0", b'""', b"{}", b"[" * 9999]),
)  # fmt: skip


def mutate_head(draft: Draft, rng: random.Random) -> None:
    """Something else in the draft's head."""
    kind = rng.choice(["header", "header", "header", "method", "path", "drop", "version", "twice"])
    if kind == "header":
        draft.headers.insert(rng.randint(0, len(draft.headers)), rng.choice(HEADERS))
    elif kind == "method":
        draft.method = rng.choice(METHODS)
    elif kind == "path":
        draft.path = _odd_path(draft.path, rng)
    elif kind == "version":
        draft.version = rng.choice(["HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/1.1x", "", "FOO/1"])
    elif draft.headers:
        at = rng.randrange(len(draft.headers))
        draft.headers[at : at + 1] = [draft.headers[at]] * (2 if kind == "twice" else 0)
    draft.is_broken = True


def _odd_path(path: str, rng: random.Random) -> str:
    return rng.choice(
        [
            path + "/", "/" + path, path + "?a=" + "b" * 5000, path + "/../..", path.upper(),
            path + "%00", path + "%ff%fe", path + "\udcff", path + "%", "*", "", "http://a/" + path,
            "/v1/models/" + "m" * 60_000, "/v1/sessions/%2e%2e%2f", "/static/../../etc/passwd",
            "/static/%2e%2e/%2e%2e/etc/passwd", path + "#a", path + ";a=b", "/metrics?name[]=\x7f",
        ]
    )  # fmt: skip


def _odd(value: Any, rng: random.Random) -> Any:
    """Something that should not stand there."""
    if rng.random() < 0.3:
        return Raw(rng.choice(RAW))
    if isinstance(value, str) and rng.random() < 0.3:
        return value * _times(rng.choice([0, 2, 100, 3000]), len(value))
    if isinstance(value, int | float) and rng.random() < 0.4:
        return rng.choice([-value, value + 1, value - 1, value * 2**31, value / 3, str(value)])
    return rng.choice(ODD)


def _times(num: int, num_bytes: int) -> int:
    """How often something of this size may be repeated instead."""
    return min(num, max(GROWN_BYTES_MAX // max(num_bytes, 1), 1))


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything inside, the value itself among them."""
    found = [path]
    items: list[tuple[Any, Any]] = list(value.items()) if isinstance(value, dict) else []
    if isinstance(value, list):
        items = list(enumerate(value[:20]))
    for step, inner in items:
        found += _places(inner, (*path, step))
    return found
