"""What the index says of a block: everything but the bytes of its pages, and where those are.

One record a block, whatever its number of layers, so that a start reads few of them. A record has a
checksum of its own: what it says is right, or it says nothing.
"""

import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash
from typing_extensions import Buffer

from shared.blocks import KEY_BYTES, BlockKey
from shared.owners import NO_OWNER, OWNER_BYTES, OwnerKey

FORMAT = b"2"  # of records and slabs; 1 had a value a page, and no slabs
_MAGIC = b"SYMKVBK2"
# magic; key, parent, fingerprint, owner; layers, tokens, page bytes; created; slot
_FIELDS = struct.Struct(f"<8s{KEY_BYTES}s{KEY_BYTES}s16s{OWNER_BYTES}sHHIqQ")
# of those: magic, key, layers, tokens, page bytes, slot
_PLACE_FIELDS = struct.Struct(f"<8s{KEY_BYTES}s{KEY_BYTES + 16 + OWNER_BYTES}xHHI8xQ")
_CHECKSUM = struct.Struct("<Q")
_TOKEN_BYTES = 4

# `_FIELDS` in columns
_HEAD = np.dtype(
    [
        ("magic", "S8"), ("key", "S16"), ("parent", "S16"), ("fingerprint", "S16"),
        ("owner", "S16"), ("num_layers", "<u2"), ("num_tokens", "<u2"), ("page_bytes", "<u4"),
        ("created_s", "<i8"), ("slot", "<u8"),
    ]
)  # fmt: skip
_SMALLEST = bytes(_FIELDS.size + _CHECKSUM.size)

assert _PLACE_FIELDS.size == _FIELDS.size == _HEAD.itemsize


class BadRecord(Exception):
    """Bytes that are no record of this release, or not the one that should be there."""


class BlockRecord(NamedTuple):
    """What the index says of a block.

    Attributes:
        fingerprint: digest of the model's, see `values.fingerprint_digest`.
        created_s: wall clock, seconds.
        slot: number of the place of its pages, in the slab of blocks of its shape.
        checksums: xxh3-64 of the page of each layer.
        owner: the session that made the block.
    """

    key: BlockKey
    parent: BlockKey
    fingerprint: bytes
    page_bytes: int
    created_s: int
    slot: int
    tokens: Sequence[int]
    checksums: Sequence[int]
    owner: OwnerKey = NO_OWNER

    @property
    def num_layers(self) -> int:
        return len(self.checksums)


class Place(NamedTuple):
    """Where a block's pages are: a slot of the slab of this shape."""

    num_layers: int
    page_bytes: int
    slot: int


def record_bytes(num_layers: int, num_tokens: int) -> int:
    """Size of a record.

    >>> record_bytes(32, 64)
    616
    """
    return _FIELDS.size + _TOKEN_BYTES * num_tokens + _CHECKSUM.size * (num_layers + 1)


def pack_record(record: BlockRecord) -> bytes:
    """As it is stored."""
    body = b"".join(
        [
            _FIELDS.pack(
                _MAGIC, record.key, record.parent, record.fingerprint, record.owner,
                record.num_layers, len(record.tokens), record.page_bytes, record.created_s,
                record.slot,
            ),
            array("i", record.tokens).tobytes(),
            array("Q", record.checksums).tobytes(),
        ]
    )  # fmt: skip
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def unpack_record(raw: Buffer, key: BlockKey) -> BlockRecord:
    """Inverse of `pack_record`.

    Raises:
        BadRecord: it is not this block's, or damaged.
    """
    view = memoryview(raw)
    num_layers = read_place(view, key).num_layers
    _, _, parent, fingerprint, owner, _, num_tokens, page_bytes, created_s, slot = (
        _FIELDS.unpack_from(view)
    )
    sums_at = _FIELDS.size + _TOKEN_BYTES * num_tokens
    return BlockRecord(
        key, BlockKey(parent), fingerprint, page_bytes, created_s, slot,
        array("i", bytes(view[_FIELDS.size : sums_at])),
        array("Q", bytes(view[sums_at : sums_at + _CHECKSUM.size * num_layers])),
        OwnerKey(owner),
    )  # fmt: skip


def read_place(raw: Buffer, key: BlockKey) -> Place:
    """Where the block's pages are: quick to read.

    Raises:
        BadRecord: it is not this block's, or damaged.
    """
    view = memoryview(raw)
    at = len(view) - _CHECKSUM.size
    if at < _FIELDS.size:
        raise BadRecord(f"a record of {len(view)} bytes")
    if xxhash.xxh3_64_intdigest(view[:at]) != _CHECKSUM.unpack_from(view, at)[0]:
        raise BadRecord("a damaged record")
    magic, found, num_layers, num_tokens, page_bytes, slot = _PLACE_FIELDS.unpack_from(view)
    if magic != _MAGIC or len(view) != record_bytes(num_layers, num_tokens):
        raise BadRecord("another release's record")
    if found != key or not num_layers or not page_bytes:
        raise BadRecord("another block's record")
    return Place(num_layers, page_bytes, slot)


def read_heads(
    keys: Sequence[bytes], raws: Sequence[bytes]
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.bool_]]:
    """What `_FIELDS` says of many blocks, in columns of those names, and of which `read_place`
    would say as much: of others it means nothing.

    Args:
        keys: under which the records `raws` stand, one each.
    """
    raws = [raw if len(raw) > len(_SMALLEST) else _SMALLEST for raw in raws]
    names = [key if len(key) == KEY_BYTES else bytes(KEY_BYTES) for key in keys]
    heads = np.frombuffer(b"".join([raw[: _HEAD.itemsize] for raw in raws]), _HEAD)
    sums = np.frombuffer(b"".join([raw[-_CHECKSUM.size :] for raw in raws]), "<u8")
    digests = [xxhash.xxh3_64_intdigest(raw[: -_CHECKSUM.size]) for raw in raws]
    num_bytes = (
        _FIELDS.size + _TOKEN_BYTES * heads["num_tokens"].astype(np.int64)
        + _CHECKSUM.size * (heads["num_layers"].astype(np.int64) + 1)
    )  # fmt: skip
    is_right = (
        (sums == np.array(digests, np.uint64))
        & (heads["magic"] == _MAGIC)
        & (num_bytes == np.fromiter(map(len, raws), np.int64, len(raws)))
        & (heads["key"] == np.frombuffer(b"".join(names), "S16"))
        & (np.fromiter(map(len, keys), np.int64, len(keys)) == KEY_BYTES)
        & (heads["num_layers"] > 0)
        & (heads["page_bytes"] > 0)
    )
    return heads, is_right


def read_checksum(raw: Buffer, place: Place, layer: int) -> int:
    """Checksum of one page, of a record whose place `read_place` returned."""
    view = memoryview(raw)
    number: int = _CHECKSUM.unpack_from(
        view, len(view) - _CHECKSUM.size * (place.num_layers + 1 - layer)
    )[0]
    return number
