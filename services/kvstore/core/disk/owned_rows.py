"""Which rows of a `BlockTable` each session made, in the order in which they came."""

import struct
from array import array
from itertools import repeat

import numpy as np
import numpy.typing as npt

from services.kvstore.core.disk.block_table import NO_ROW
from shared.owners import NO_OWNER, OWNER_BYTES, OwnerKey

_NO_OWNER = -1
_OWNER = struct.Struct(f"{OWNER_BYTES}s")


class OwnedRows:
    """A chain of rows a session, held by arrays: a list each would take twice as much, and time of
    the collector. Rows without an owner are in none.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Every row is gone."""
        self._numbers: dict[OwnerKey, int] = {}
        self._names: list[OwnerKey] = []  # by number, and so are the last row, and how many
        self._last, self._num = array("i"), array("i")
        self._free: list[int] = []
        self._owner, self._before, self._after = array("i"), array("i"), array("i")  # by row

    @property
    def owners(self) -> list[OwnerKey]:
        """Sessions that made any that is not gone."""
        return list(self._numbers)

    def owner_of(self, row: int) -> OwnerKey:
        """The session that made what is in this row."""
        number = self._owner[row]
        return NO_OWNER if number == _NO_OWNER else self._names[number]

    def of(self, owner: OwnerKey) -> list[int]:
        """What `owner` made and is not gone, in the order in which it came."""
        rows = []
        row = self.last_of(owner)
        while row != NO_ROW:
            rows.append(row)
            row = self._before[row]
        rows.reverse()
        return rows

    def last_of(self, owner: OwnerKey) -> int:
        """The one of those that came last, or `NO_ROW`."""
        number = self._numbers.get(owner)
        return NO_ROW if number is None else self._last[number]

    def num_of(self, owner: OwnerKey) -> int:
        """How many those are."""
        number = self._numbers.get(owner)
        return 0 if number is None else self._num[number]

    def add(self, owner: OwnerKey, row: int) -> None:
        """`owner` made what is in this row now."""
        for column in (self._owner, self._before, self._after):
            if row >= len(column):
                column.extend(repeat(NO_ROW, row + 1 - len(column)))
        number = self._owner[row] = self._number(owner)
        if number == _NO_OWNER:
            return
        before = self._last[number]
        self._before[row], self._after[row] = before, NO_ROW
        if before != NO_ROW:
            self._after[before] = row
        self._last[number] = row
        self._num[number] += 1

    def remove(self, row: int) -> None:
        """What is in this row is gone."""
        if (number := self._owner[row]) == _NO_OWNER:
            return
        self._owner[row] = _NO_OWNER
        before, after = self._before[row], self._after[row]
        if before != NO_ROW:
            self._after[before] = after
        if after != NO_ROW:
            self._before[after] = before
        else:
            self._last[number] = before
        self._num[number] -= 1
        if not self._num[number]:
            del self._numbers[self._names[number]]
            self._names[number] = NO_OWNER
            self._free.append(number)

    def fill(self, owners: bytes) -> None:
        """Rows from 0 on were made by these, `OWNER_BYTES` each, and came in their order; instead
        of what is here."""
        self.clear()
        numbers = self._numbers
        numbers[NO_OWNER] = _NO_OWNER  # only while all are numbered: the others count from 0
        for (name,) in _OWNER.iter_unpack(owners):
            self._owner.append(numbers.setdefault(name, len(numbers) - 1))
        del numbers[NO_OWNER]
        self._names = list(numbers)
        owner = np.array(self._owner, np.int32)
        rows = np.argsort(owner, kind="stable").astype(np.int32)
        rows = rows[owner[rows] != _NO_OWNER]  # owner by owner, in their order
        is_same = owner[rows[1:]] == owner[rows[:-1]]
        before, after = (np.full(len(owner), NO_ROW, np.int32) for _ in range(2))
        before[rows[1:][is_same]] = rows[:-1][is_same]
        after[rows[:-1][is_same]] = rows[1:][is_same]
        self._before.frombytes(before.tobytes())
        self._after.frombytes(after.tobytes())
        last = np.full(len(self._names), NO_ROW, np.int32)
        last[owner[rows]] = rows  # of equal ones, the last is kept
        self._last = array("i", last.tobytes())
        num = np.bincount(owner[rows], minlength=len(self._names)).astype(np.int32)
        self._num = array("i", num.tobytes())

    def lasts(self) -> npt.NDArray[np.int32]:
        """For each row, the one that its session made last; for a row without an owner, itself."""
        owner = np.array(self._owner, np.int32)
        rows = np.arange(len(owner), dtype=np.int32)
        is_owned = owner != _NO_OWNER
        rows[is_owned] = np.array(self._last, np.int32)[owner[is_owned]]
        return rows

    def greatest(self, values: npt.NDArray[np.int32]) -> dict[OwnerKey, int]:
        """Of each session the greatest of its rows' values, all at least 0.

        Args:
            values: int32 [num_rows], by row.
        """
        owner = np.array(self._owner, np.int32)
        is_owned = owner != _NO_OWNER
        greatest = np.zeros(len(self._names), np.int32)
        np.maximum.at(greatest, owner[is_owned], values[: len(owner)][is_owned])
        return {name: int(greatest[number]) for name, number in self._numbers.items()}

    def _number(self, owner: OwnerKey) -> int:
        if owner == NO_OWNER:
            return _NO_OWNER
        if (number := self._numbers.get(owner)) is not None:
            return number
        if self._free:
            number = self._free.pop()
            self._names[number] = owner
        else:
            number = len(self._names)
            self._names.append(owner)
            self._last.append(NO_ROW)
            self._num.append(0)
        self._numbers[owner] = number
        return number
