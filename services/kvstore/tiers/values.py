"""A value: one page as it goes to another host, behind a fixed header that describes it."""

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import xxhash
from typing_extensions import Buffer

from shared.blocks import BLOCK_TOKENS, KEY_BYTES, BlockKey
from shared.owners import NO_OWNER, OWNER_BYTES, OwnerKey

HEADER_BYTES = 512
_MAGIC = b"SYMKVPG1"
# magic; key, parent, fingerprint; layer, layers, tokens; page bytes; created; payload's checksum
_FIELDS = struct.Struct(f"<8s{KEY_BYTES}s{KEY_BYTES}s16sHHHIqQ")
# of those: magic, key, layer, tokens, page bytes, payload's checksum
_NAME_FIELDS = struct.Struct(f"<8s{KEY_BYTES}s{KEY_BYTES + 16}xH2xHI8xQ")
_CHECKSUM = struct.Struct("<Q")
_CHECKSUM_AT = HEADER_BYTES - _CHECKSUM.size
_OWNER_AT = _CHECKSUM_AT - OWNER_BYTES  # zeros: no owner
LAYERS_MAX = 0xFFFF
TOKENS_MAX = (_OWNER_AT - _FIELDS.size) // 4

assert _NAME_FIELDS.size == _FIELDS.size
assert _FIELDS.size + 4 * BLOCK_TOKENS <= _OWNER_AT, "the header has room for a block's tokens"


class BadValue(Exception):
    """Bytes that are no header of this release."""


@dataclass(frozen=True, slots=True)
class ValueHeader:
    """What a value says of itself.

    Attributes:
        fingerprint: digest of the model's, see `fingerprint_digest`.
        created_s: wall clock, seconds.
        checksum: xxh3-64 of the page.
        owner: the session that made the block.
    """

    key: BlockKey
    parent: BlockKey
    fingerprint: bytes
    layer: int
    num_layers: int
    page_bytes: int
    created_s: int
    tokens: Sequence[int]
    checksum: int
    owner: OwnerKey = NO_OWNER


class ValueName(NamedTuple):
    """The part of a header that says which page it is of, and its checksum: quick to read."""

    key: BlockKey
    layer: int
    page_bytes: int
    checksum: int


def fingerprint_digest(fingerprint: str) -> bytes:
    """A model's fingerprint in 16 bytes."""
    return blake2b(fingerprint.encode(), digest_size=16).digest()


def pack_header(header: ValueHeader) -> bytes:
    """`HEADER_BYTES` that go before the page."""
    tokens = array("i", header.tokens).tobytes()
    body = b"".join(
        [
            _FIELDS.pack(
                _MAGIC, header.key, header.parent, header.fingerprint, header.layer,
                header.num_layers, len(header.tokens), header.page_bytes, header.created_s,
                header.checksum,
            ),
            tokens,
            bytes(_OWNER_AT - _FIELDS.size - len(tokens)),
            header.owner,
        ]
    )  # fmt: skip
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def unpack_header(raw: Buffer) -> ValueHeader:
    """A header that stands alone; how much follows it is the caller's to check.

    Raises:
        BadValue: none of this release, damaged, or cut short.
    """
    view = memoryview(raw)
    read_name(view)
    (
        _,
        key,
        parent,
        fingerprint,
        layer,
        num_layers,
        num_tokens,
        page_bytes,
        created,
        checksum,
    ) = _FIELDS.unpack_from(view)
    tokens = array("i", bytes(view[_FIELDS.size : _FIELDS.size + 4 * num_tokens])).tolist()
    return ValueHeader(
        BlockKey(key), BlockKey(parent), fingerprint, layer, num_layers, page_bytes, created,
        tokens, checksum, OwnerKey(bytes(view[_OWNER_AT:_CHECKSUM_AT])),
    )  # fmt: skip


def read_name(raw: Buffer) -> ValueName:
    """Which page a header that stands alone is of.

    Raises:
        BadValue: none of this release, damaged, or cut short.
    """
    view = memoryview(raw)
    if len(view) != HEADER_BYTES:
        raise BadValue(f"a header of {len(view)} bytes")
    if (
        xxhash.xxh3_64_intdigest(view[:_CHECKSUM_AT])
        != _CHECKSUM.unpack_from(view, _CHECKSUM_AT)[0]
    ):
        raise BadValue("damaged header")
    magic, key, layer, num_tokens, page_bytes, checksum = _NAME_FIELDS.unpack_from(view)
    if magic != _MAGIC or num_tokens > TOKENS_MAX:
        raise BadValue("another release's value")
    return ValueName(BlockKey(key), layer, page_bytes, checksum)
