"""What two kvstores send each other on a connection, as bytes. No I/O here.

1. Each proves that it knows the deployment's secret (`proof.py`): the client sends a `Hello`, the
   server its own, the client its proof, the server its own. A `Hello` has a fixed size.
2. The client sends `Request`s: keys of blocks whose page of one layer it wants. It asks for no more
   than it has room for, so a request is the credit for its answers.
3. The server answers every page that was asked for: an `Answer` speaks of a run of them, in the
   order in which they were asked. Behind an answer that they come stand the values as they are
   stored, each a header of `values.HEADER_BYTES` and the page. Runs of several requests may
   alternate, the most urgent first.

All numbers are little-endian. Limits are checked before anything is allocated by what was read.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from services.kvstore.tiers.values import HEADER_BYTES
from shared.blocks import KEY_BYTES, BlockKey

VERSION = 1
NONCE_BYTES = 32
PROOF_BYTES = 32
HOST_ID_BYTES_MAX = 255
PAGE_BYTES_MAX = 1024**3
KEYS_MAX = 64  # in a request
REQUESTS_MAX = 32  # of a connection, not yet answered: no more bytes than any socket's buffer takes

_MAGIC = b"SYMPEERS"
_REQUEST_TAG, _ANSWER_TAG = 0x52, 0x41
_HELLO = struct.Struct(f"<8sHH{HOST_ID_BYTES_MAX + 1}s{NONCE_BYTES}s")
# tag, number of keys, layer; number; priority; milliseconds; page bytes
_REQUEST = struct.Struct("<BBHIiII")
_ANSWER = struct.Struct("<BBHHHI")  # tag, status, first, count, zero; number
HELLO_BYTES = _HELLO.size
ANSWER_BYTES = _ANSWER.size
REQUEST_BYTES_MAX = _REQUEST.size + KEYS_MAX * KEY_BYTES
NUMBER_MAX = 2**32 - 1
PRIORITY_MAX = 2**31 - 1
LEFT_MS_MAX = 2**32 - 1
LAYER_MAX = 2**16 - 1
SLOWEST_BYTES_PER_S = 1e6  # an end of a connection that is slower counts as standing still

KEPT, VOID = b"kept", b"void"  # behind a page that may have changed while it was sent
VERDICT_BYTES = 4


class WireError(Exception):
    """Bytes that no kvstore of this release sends."""


class Status(IntEnum):
    """What an answer says of its pages."""

    PAGE = 0  # their values follow
    JUDGED = 1  # the value of the one page follows, and then whether that is still valid
    MISSING = 2  # they are not stored here
    LATE = 3  # the request's time was over
    UNREAD = 4  # reading failed, which says nothing of what is stored


@dataclass(frozen=True, slots=True)
class Hello:
    """The sender. `nonce` is new for each connection."""

    host_id: str
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Request:
    """Wants the page of `layer` of each of these blocks.

    Attributes:
        number: the client's; of no other request that is not yet answered.
        priority: a turn's or an advisory's, see `shared.wire.urgency.load_order`.
        left_ms: what is sent later than that after the request came is of no use.
    """

    number: int
    layer: int
    page_bytes: int
    priority: int
    left_ms: int
    keys: list[BlockKey]


@dataclass(frozen=True, slots=True)
class Answer:
    """Speaks of `count` pages of request `number` from the `first` on."""

    number: int
    first: int
    count: int
    status: Status


def pack_hello(hello: Hello) -> bytes:
    """Raises:
    ValueError: the host's id is too long.
    """
    host_id = hello.host_id.encode()
    if not 0 < len(host_id) <= HOST_ID_BYTES_MAX or len(hello.nonce) != NONCE_BYTES:
        raise ValueError(f"a host id has 1 to {HOST_ID_BYTES_MAX} bytes")
    return _HELLO.pack(_MAGIC, VERSION, len(host_id), host_id, hello.nonce)


def unpack_hello(raw: bytes) -> Hello:
    """Inverse of `pack_hello`.

    Raises:
        WireError: it is none, or of another version.
    """
    if len(raw) != HELLO_BYTES:
        raise WireError(f"a hello of {len(raw)} bytes")
    magic, version, num_bytes, host_id, nonce = _HELLO.unpack(raw)
    if magic != _MAGIC:
        raise WireError("no kvstore speaks like this")
    if version != VERSION:
        raise WireError(f"it speaks version {version}, we speak {VERSION}")
    if not 0 < num_bytes <= HOST_ID_BYTES_MAX or any(host_id[num_bytes:]):
        raise WireError(f"a host id of {num_bytes} bytes")
    try:
        return Hello(host_id[:num_bytes].decode(), nonce)
    except UnicodeDecodeError:
        raise WireError("a host id that is no text") from None


def pack_request(request: Request) -> bytes:
    """Header and keys."""
    head = _REQUEST.pack(
        _REQUEST_TAG, len(request.keys), request.layer, request.number, request.priority,
        request.left_ms, request.page_bytes,
    )  # fmt: skip
    return head + b"".join(request.keys)


def read_request(raw: bytes | bytearray | memoryview) -> tuple[Request, int] | None:
    """The request that these bytes begin with, and how many of them it takes; None while some of
    it have not come.

    Raises:
        WireError: they begin no request.
    """
    view = memoryview(raw)
    if len(view) < _REQUEST.size:
        if view and view[0] != _REQUEST_TAG:
            raise WireError("no request")
        return None
    tag, num_keys, layer, number, priority, left_ms, page_bytes = _REQUEST.unpack_from(view)
    if tag != _REQUEST_TAG:
        raise WireError("no request")
    if not 0 < num_keys <= KEYS_MAX:
        raise WireError(f"a request of {num_keys} pages")
    if not 0 < page_bytes <= PAGE_BYTES_MAX:
        raise WireError(f"pages of {page_bytes} bytes")
    end = _REQUEST.size + num_keys * KEY_BYTES
    if len(view) < end:
        return None
    packed = bytes(view[_REQUEST.size : end])
    keys = [BlockKey(packed[at : at + KEY_BYTES]) for at in range(0, len(packed), KEY_BYTES)]
    return Request(number, layer, page_bytes, priority, left_ms, keys), end


def pack_answer(answer: Answer) -> bytes:
    """Without the values that follow."""
    return _ANSWER.pack(_ANSWER_TAG, answer.status, answer.first, answer.count, 0, answer.number)


def unpack_answer(raw: bytes | bytearray | memoryview) -> Answer:
    """Inverse of `pack_answer`.

    Raises:
        WireError: it is none.
    """
    if len(raw) != ANSWER_BYTES:
        raise WireError(f"an answer of {len(raw)} bytes")
    tag, status, first, count, zero, number = _ANSWER.unpack(raw)
    if tag != _ANSWER_TAG or zero:
        raise WireError("no answer")
    if not 0 < count <= KEYS_MAX - first:
        raise WireError(f"an answer for {count} pages from number {first} on")
    if status == Status.JUDGED and count != 1:
        raise WireError("one verdict for several pages")
    try:
        return Answer(number, first, count, Status(status))
    except ValueError:
        raise WireError(f"an answer of status {status}") from None


def value_bytes(page_bytes: int) -> int:
    """What a page takes on the wire: its header, too."""
    return HEADER_BYTES + page_bytes
