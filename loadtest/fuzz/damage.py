"""Damage to the KV database's files, drawn by a seeded generator.

In the index, pages that hold the trees are met more often than their number would have it, for the
rest is values, which have checksums of their own.
"""

import random
from collections.abc import Callable, Mapping

PAGE_BYTES = 4096
META_PAGES = 2
_STRUCTURE_FLAGS = {1, 2, 8}  # branch, leaf, meta; everything else is values
_HEADER_BYTES = 64


def damage(content: bytearray, rng: random.Random) -> str:
    """Damage the bytes of an LMDB file in place.

    Returns:
        What was done, and where.
    """
    num_pages = len(content) // PAGE_BYTES
    structure = [number for number in range(num_pages) if _is_structure(content, number)]
    page = rng.choice([rng.choice(structure), rng.choice(structure), rng.randrange(num_pages)])
    kind = rng.choice(list(KINDS))
    if kind == "meta":
        page = rng.randrange(META_PAGES)
    KINDS[kind](content, page * PAGE_BYTES, rng)
    return f"{kind} at page {page} of {num_pages}"


def damage_slab(content: bytearray, rng: random.Random) -> str:
    """Damage the bytes of a slab in place.

    Returns:
        What was done, and where.
    """
    num_pages = len(content) // PAGE_BYTES
    page = rng.randrange(num_pages)
    kind = rng.choice([name for name in KINDS if name != "meta"])
    KINDS[kind](content, page * PAGE_BYTES, rng)
    return f"{kind} at page {page} of {num_pages} of a slab"


def _is_structure(content: bytearray, number: int) -> bool:
    start = number * PAGE_BYTES
    flags = int.from_bytes(content[start + 10 : start + 12], "little")
    return int.from_bytes(content[start : start + 8], "little") == number and (
        flags in _STRUCTURE_FLAGS
    )


def _flip(content: bytearray, start: int, rng: random.Random) -> None:
    for _ in range(rng.choice([1, 8, 64])):
        at = start + rng.randrange(rng.choice([_HEADER_BYTES, PAGE_BYTES]))
        content[at] ^= rng.randrange(1, 256)


def _zero(content: bytearray, start: int, rng: random.Random) -> None:
    content[start : start + PAGE_BYTES] = bytes(PAGE_BYTES)


def _noise(content: bytearray, start: int, rng: random.Random) -> None:
    content[start : start + PAGE_BYTES] = rng.randbytes(PAGE_BYTES)


def _cut(content: bytearray, start: int, rng: random.Random) -> None:
    """The file ends in the middle of the page."""
    del content[start + rng.randrange(PAGE_BYTES) :]


def _torn(content: bytearray, start: int, rng: random.Random) -> None:
    """The end of the file never came to the disk; its length did."""
    num_bytes = min(len(content), PAGE_BYTES * rng.choice([1, 4, 64]) - rng.choice([0, 512]))
    content[-num_bytes:] = bytes(num_bytes)


def _swap(content: bytearray, start: int, rng: random.Random) -> None:
    """Two pages stand in each other's places."""
    other = rng.randrange(len(content) // PAGE_BYTES) * PAGE_BYTES
    ours, theirs = slice(start, start + PAGE_BYTES), slice(other, other + PAGE_BYTES)
    content[ours], content[theirs] = content[theirs], content[ours]


def _half(content: bytearray, start: int, rng: random.Random) -> None:
    """Some sectors of the page are those of another one."""
    other = rng.randrange(len(content) // PAGE_BYTES) * PAGE_BYTES
    num_bytes = 512 * rng.randint(1, 7)
    content[start : start + num_bytes] = content[other : other + num_bytes]


KINDS: Mapping[str, Callable[[bytearray, int, random.Random], None]] = {
    "flip": _flip,
    "zero": _zero,
    "noise": _noise,
    "cut": _cut,
    "torn": _torn,
    "swap": _swap,
    "half": _half,
    "meta": _flip,
}
"""What can be done to the page that starts at an offset."""
