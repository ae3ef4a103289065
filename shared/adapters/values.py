"""Elements of tensors as bits: read from files, looked at, made those of a model's dtype."""

import os
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.adapters.tensors import TensorEntry

Bits = NDArray[Any]  # uint16 or uint32: numpy has no bfloat16

CHUNK_BYTES = 1 << 22
ELEMENTS = {"float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16}

_FILE_ELEMENTS: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<u4"),
    "F16": np.dtype("<u2"),
    "BF16": np.dtype("<u2"),
}
_SAME = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_NOT_FINITE = {"F32": 0x7F80_0000, "F16": 0x7C00, "BF16": 0x7F80}
_OVERFLOWS = {  # the smallest bits that round to infinity
    ("F32", "bfloat16"): 0x7F7F_8000,
    ("F32", "float16"): 0x477F_F000,
    ("BF16", "float16"): 0x4780,
}


class Truncated(Exception):
    """The file has become shorter since its header was read."""


def read_chunks(fd: int, entry: TensorEntry) -> Iterator[Bits]:
    """A tensor's elements, some at a time, so that large ones take no memory.

    Raises:
        Truncated: the file ends before the tensor does.
    """
    place, left = entry.begin, entry.num_bytes
    while left:
        size = min(left, CHUNK_BYTES)
        yield _read(fd, entry, place, size)
        place, left = place + size, left - size


def read_tensors(fd: int, entries: Iterable[TensorEntry]) -> Iterator[tuple[TensorEntry, Bits]]:
    """Tensors' elements, in their shapes, each good until the next is asked for. What lies together
    in the file is read at once.

    Raises:
        Truncated: the file ends before a tensor does.
    """
    buffer = np.empty(0, np.uint8)
    for group in _neighbours(entries):
        begin, num_bytes = group[0].begin, sum(each.num_bytes for each in group)
        if num_bytes > len(buffer):
            buffer = np.empty(num_bytes, np.uint8)
        _fill(fd, buffer[:num_bytes], begin, group[-1].name)
        for each in group:
            at = each.begin - begin
            bits = buffer[at : at + each.num_bytes].view(_FILE_ELEMENTS[each.dtype])
            yield each, bits.reshape(each.shape)


def first_unfit(bits: Bits, source: str, dtype: str) -> int | None:
    """Where the first element is that no finite one of the model's dtype is near to.

    Args:
        bits: one-dimensional.
        source: their dtype, as safetensors calls it.
        dtype: the model's, in torch's words; empty: any, only what is not finite is unfit.
    """
    limit = _OVERFLOWS.get((source, dtype), _NOT_FINITE[source])
    magnitudes = bits & bits.dtype.type((1 << 8 * bits.itemsize - 1) - 1)
    if not len(magnitudes) or magnitudes.max() < limit:
        return None
    return int(np.argmax(magnitudes >= limit))


def convert(bits: Bits, source: str, dtype: str) -> Bits:
    """Elements of the model's dtype, rounded to nearest, ties to even. All of them are finite.

    >>> [hex(each) for each in convert(np.array([0x3F80_8000, 0x3F81_8000], np.uint32), "F32",
    ...     "bfloat16")]
    ['0x3f80', '0x3f82']
    """
    if _SAME[source] == dtype:
        return bits
    wide = bits if source == "F32" else _widened(bits, source)
    if dtype == "float32":
        return wide
    if dtype == "float16":
        return wide.view(np.float32).astype(np.float16).view(np.uint16)
    rounded: Bits = (wide + (0x7FFF + (wide >> 16 & 1))) >> 16
    return rounded.astype(np.uint16)


def values_hash(chunks: Iterable[Bits], source: str) -> str:
    """Of a tensor's values: the same in every dtype that holds them, as a model's own weight and an
    adapter's copy of it may differ in that.

    Args:
        chunks: all elements, in any number of pieces.
        source: their dtype, as safetensors calls it.
    """
    digest = blake2b(digest_size=16)
    for bits in chunks:
        digest.update((bits if source == "F32" else _widened(bits, source)).data)
    return digest.hexdigest()


def number(bits: Bits, source: str, at: int) -> float:
    """One element, for messages."""
    one = bits[at : at + 1]
    return float((one if source == "F32" else _widened(one, source)).view(np.float32)[0])


def _widened(bits: Bits, source: str) -> Bits:
    """The same values as float32."""
    if source == "F16":
        return bits.view(np.float16).astype(np.float32).view(np.uint32)
    wide: Bits = bits.astype(np.uint32) << 16
    return wide


def _neighbours(entries: Iterable[TensorEntry]) -> Iterator[list[TensorEntry]]:
    """Tensors in the order of the file, together those that follow one another, up to a chunk."""
    group: list[TensorEntry] = []
    for each in sorted(entries, key=lambda each: each.begin):
        if group:
            is_next = each.begin == group[-1].begin + group[-1].num_bytes
            if not is_next or each.begin + each.num_bytes - group[0].begin > CHUNK_BYTES:
                yield group
                group = []
        group.append(each)
    if group:
        yield group


def _read(fd: int, entry: TensorEntry, place: int, size: int) -> Bits:
    element = _FILE_ELEMENTS[entry.dtype]
    bits = np.empty(size // element.itemsize, element)
    _fill(fd, bits.view(np.uint8), place, entry.name)
    return bits


def _fill(fd: int, buffer: NDArray[np.uint8], place: int, name: str) -> None:
    view = buffer.data
    while view:
        num = os.preadv(fd, [view], place)
        if not num:
            raise Truncated(name)
        view, place = view[num:], place + num
