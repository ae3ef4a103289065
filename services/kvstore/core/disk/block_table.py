"""Blocks on disk, a row each, in columns.

A host has a million of them and more. As objects they would take three times the memory, and the
collector would look through all that came since the start.
"""

import struct
from array import array
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from services.kvstore.core.disk.found_blocks import FoundBlocks, Shape
from services.kvstore.core.disk.stored_block import UNKNOWN, StoredBlock
from shared.blocks import KEY_BYTES, NO_PARENT, BlockKey

Rows: TypeAlias = npt.NDArray[np.int32]

NO_ROW = -1
_KEY = struct.Struct(f"{KEY_BYTES}s")


class BlockTable:
    """Rows are given again once their blocks are gone.

    Attributes:
        rows: of blocks, by key.
        keys, parents: of the block in each row; a parent that is here is the very object that is
            its key.
        depth, num_children, is_saved, used_at_ns, noted_at_ns, expiry_ns, return_kind: as in
            `StoredBlock`; a row is linked again in its `UseOrder` when one of the last two changes.
        older, newer: rows beside it in its `UseOrder`.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Every row is gone."""
        self.rows: dict[BlockKey, int] = {}
        self.keys: list[BlockKey] = []
        self.parents: list[BlockKey] = []
        self.depth, self.num_children = array("i"), array("i")
        self.older, self.newer, self.return_kind = array("i"), array("i"), array("i")
        self.used_at_ns, self.noted_at_ns, self.expiry_ns = array("q"), array("q"), array("q")
        self.is_saved = bytearray()
        self._shape = array("i")
        self._shapes: list[Shape] = []
        self._shape_numbers: dict[Shape, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        """Rows there are, free ones too."""
        return len(self.keys)

    def add(self, block: StoredBlock) -> int:
        """Its row; how deep it is and what continues it is to be set."""
        assert block.key not in self.rows, "a block is stored once"
        row = self.new_row()
        self.rows[block.key] = row
        self.keys[row] = block.key
        before = self.rows.get(block.parent)
        self.parents[row] = block.parent if before is None else self.keys[before]
        self._shape[row] = self._number(Shape(block.num_layers, block.page_bytes, block.num_bytes))
        self.used_at_ns[row], self.noted_at_ns[row] = block.used_at_ns, block.noted_at_ns
        self.expiry_ns[row], self.return_kind[row] = block.expiry_ns, block.return_kind
        self.is_saved[row] = block.is_saved
        return row

    def fill(self, found: FoundBlocks) -> Rows:
        """Take these in, row by row in their order, instead of what is here.

        Returns:
            int32 [len(self)], the row before each, or `NO_ROW`.
        """
        self.clear()
        keys = [BlockKey(key) for (key,) in _KEY.iter_unpack(found.keys)]
        rows = self.rows = dict(zip(keys, range(len(keys)), strict=True))
        assert len(rows) == len(keys), "a block is stored once"
        self.keys = keys
        elsewhere: dict[BlockKey, BlockKey] = {}
        before = array("i")
        for (parent,) in _KEY.iter_unpack(found.parents):
            row = rows.get(parent, NO_ROW)
            before.append(row)
            same = elsewhere.setdefault(parent, parent) if row == NO_ROW else keys[row]
            self.parents.append(same)
        zeros = bytes(4 * len(keys))
        columns = self.depth, self.num_children, self.older, self.newer, self.return_kind
        for column in columns:
            column.frombytes(zeros)
        self.used_at_ns.frombytes(found.used_at_ns.tobytes())
        self.noted_at_ns.frombytes(found.used_at_ns.tobytes())
        self.expiry_ns.frombytes(found.expiry_ns.tobytes())
        self.is_saved = bytearray(len(keys))
        numbers = np.array([self._number(shape) for shape in found.shapes], np.int32)
        self._shape.frombytes(numbers[found.shape_numbers].tobytes())
        return np.array(before)

    def remove(self, row: int) -> None:
        """Its block is gone."""
        del self.rows[self.keys[row]]
        self.keys[row] = self.parents[row] = NO_PARENT
        self._free.append(row)

    def remove_end(self, row: int) -> None:
        """A row that was no block's is not needed any more."""
        self._free.append(row)

    def new_row(self) -> int:
        """One that is no block's."""
        if self._free:
            return self._free.pop()
        self.keys.append(NO_PARENT)
        self.parents.append(NO_PARENT)
        for column in (
            self.depth, self.num_children, self.older, self.newer, self._shape, self.used_at_ns,
            self.noted_at_ns, self.expiry_ns, self.is_saved, self.return_kind,
        ):  # fmt: skip
            column.append(0)
        return len(self.keys) - 1

    def parent_row(self, row: int) -> int:
        """Of the block before that in this row; `NO_ROW`: it is not here."""
        return self.rows.get(self.parents[row], NO_ROW)

    def shape(self, row: int) -> Shape:
        """Of the block in this row."""
        return self._shapes[self._shape[row]]

    def _number(self, shape: Shape) -> int:
        if (number := self._shape_numbers.get(shape)) is None:
            number = self._shape_numbers[shape] = len(self._shapes)
            self._shapes.append(shape)
        return number


def find_depths(parents: Rows) -> Rows:
    """How many rows come before each; `UNKNOWN` where that goes round in a circle.

    Args:
        parents: int32 [num_rows], the row before each, or `NO_ROW`.

    >>> find_depths(np.array([1, 2, NO_ROW, 3, 3], np.int32)).tolist()
    [2, 1, 0, -1, -1]
    """
    # Each step doubles how far every row looks: `depth` is how far `above` is from it.
    depth: Rows = (parents != NO_ROW).astype(np.int32)
    above = parents.copy()
    for _ in range(len(parents).bit_length() + 1):
        if not (going := np.flatnonzero(above != NO_ROW)).size:
            break
        up = above[going]
        depth[going] += depth[up]
        above[going] = above[up]
    depth[above != NO_ROW] = UNKNOWN
    return depth
