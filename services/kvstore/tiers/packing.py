"""Pages made smaller without loss: zstd, behind a shuffle of bytes.

The bytes of a number are not alike: of a bfloat16 one says sign and exponent, which are similar in
all of a page, and one the fraction, which is noise. So all first bytes are put before all second
ones, and zstd finds what there is in the first half and passes over the rest (as Blosc does for
arrays, https://www.blosc.org/pages/blosc-in-depth). How many bytes a number has is not
known here: it is tried.
"""

import threading
from collections.abc import Sequence

import numpy as np
import zstandard
from typing_extensions import Buffer

from services.kvstore.tiers.values import BadValue
from shared.arena import Bytes

LEVEL = 1  # others take several times as long for a hundredth less
WIDTHS = (1, 2, 4)  # bytes of a number, as tried
WORTH = 0.97  # as large as without a shuffle, which halves the speed
RAW = 0  # of bytes that do not get smaller, in the place of a width
NOTES_BYTES = 1  # before the frame

_local = threading.local()


def pack(data: Bytes, width: int, level: int = LEVEL) -> bytes:
    """Some bytes, smaller if they can be.

    Args:
        data: uint8 [n].
        width: bytes of a number; if it does not divide `n`, as 1.
    """
    width = 1 if len(data) % width else width
    frame = _compressor(level).compress(shuffled(data, width).data)
    if len(frame) >= len(data):
        return bytes([RAW]) + data.tobytes()
    return bytes([width]) + frame


def unpack(packed: Buffer, num_bytes: int) -> Bytes:
    """Inverse of `pack`: uint8 [num_bytes]. Takes no more memory than that, whatever it is given.

    Raises:
        BadValue: it is not so many bytes packed.
    """
    view = memoryview(packed)
    if not view or (width := view[0]) not in (RAW, *WIDTHS) or (width and num_bytes % width):
        raise BadValue("not packed here")
    frame = view[NOTES_BYTES:]
    if width == RAW:
        if len(frame) != num_bytes:
            raise BadValue(f"{len(frame)} bytes in the place of {num_bytes}")
        return np.frombuffer(frame, np.uint8)
    try:
        if zstandard.get_frame_parameters(frame).content_size != num_bytes:
            raise BadValue("a frame of another length")
        data = _decompressor().decompress(frame, num_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadValue(str(error)) from None
    if len(data) != num_bytes:
        raise BadValue("a frame of another length")
    return unshuffled(np.frombuffer(data, np.uint8), width)


def best_width(data: Bytes) -> int:
    """With which of `WIDTHS` these bytes are to be packed: 1, or where others make them so much
    smaller that it is worth their time, the one that makes them the smallest.
    """
    sizes = {width: len(pack(data, width)) for width in WIDTHS}
    best = min(WIDTHS, key=lambda width: sizes[width])
    return best if sizes[best] < WORTH * sizes[1] else 1


def shuffled(data: Bytes, width: int) -> Bytes:
    """All first bytes of numbers, then all second ones, and so on: uint8 [n] to uint8 [n].

    >>> shuffled(np.frombuffer(b"aAbBcC", np.uint8), 2).tobytes()
    b'abcABC'
    """
    return np.ascontiguousarray(data.reshape(-1, width).T).reshape(-1)


def unshuffled(data: Bytes, width: int) -> Bytes:
    """Inverse of `shuffled`.

    >>> unshuffled(np.frombuffer(b"abcABC", np.uint8), 2).tobytes()
    b'aAbBcC'
    """
    return np.ascontiguousarray(data.reshape(width, -1).T).reshape(-1)


def offsets_of(sizes: Sequence[int]) -> list[int]:
    """Where things of these sizes begin that lie behind each other, and where the last ends."""
    return [0, *np.cumsum(sizes).tolist()]


def _compressor(level: int) -> zstandard.ZstdCompressor:
    """This thread's own: none may be used by two."""
    found: tuple[int, zstandard.ZstdCompressor] | None = getattr(_local, "compressor", None)
    if found is None or found[0] != level:
        found = _local.compressor = (level, zstandard.ZstdCompressor(level=level))
    return found[1]


def _decompressor() -> zstandard.ZstdDecompressor:
    """This thread's own: none may be used by two."""
    found: zstandard.ZstdDecompressor | None = getattr(_local, "decompressor", None)
    if found is None:
        found = _local.decompressor = zstandard.ZstdDecompressor()
    return found
