"""What a disk held at the start, in columns: objects of a million blocks would take longer to make
than to take in.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from services.kvstore.core.disk.stored_block import StoredBlock

Instants = npt.NDArray[np.int64]


class Shape(NamedTuple):
    """Of a block, and what one like that occupies on disk."""

    num_layers: int
    page_bytes: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class FoundBlocks:
    """Blocks in any order, each key once; an entry a block in every column.

    Attributes:
        keys, parents, owners: 16 bytes a block, one after the other.
        used_at_ns, expiry_ns: int64 [num_blocks], as in `StoredBlock`.
        shapes: that there are.
        shape_numbers: int64 [num_blocks], into `shapes`.
    """

    keys: bytes
    parents: bytes
    owners: bytes
    used_at_ns: Instants
    expiry_ns: Instants
    shapes: list[Shape]
    shape_numbers: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.used_at_ns)

    @property
    def num_bytes(self) -> int:
        """Of all blocks together."""
        counts = np.bincount(self.shape_numbers, minlength=len(self.shapes)).tolist()
        return sum(each.num_bytes * num for each, num in zip(self.shapes, counts, strict=True))

    @classmethod
    def of(cls, blocks: Iterable[StoredBlock]) -> "FoundBlocks":
        """The same of blocks one by one."""
        blocks = list(blocks)
        numbers: dict[Shape, int] = {}
        of_block = [
            numbers.setdefault(Shape(b.num_layers, b.page_bytes, b.num_bytes), len(numbers))
            for b in blocks
        ]
        return cls(
            b"".join(block.key for block in blocks),
            b"".join(block.parent for block in blocks),
            b"".join(block.owner for block in blocks),
            np.array([block.used_at_ns for block in blocks], np.int64),
            np.array([block.expiry_ns for block in blocks], np.int64),
            list(numbers),
            np.array(of_block, np.int64),
        )

    def by_use(self) -> "FoundBlocks":
        """Least recently used first."""
        order = np.argsort(self.used_at_ns, kind="stable")
        return FoundBlocks(
            _ordered(self.keys, order),
            _ordered(self.parents, order),
            _ordered(self.owners, order),
            self.used_at_ns[order],
            self.expiry_ns[order],
            self.shapes,
            self.shape_numbers[order],
        )


def _ordered(names: bytes, order: npt.NDArray[np.int64]) -> bytes:
    return np.frombuffer(names, "V16")[order].tobytes()
