"""The memory that a helper shares with the worker, and the words by which they tell each other that
something is in it.

A file without a name, one for each helper: it ends with the two processes, and a helper that is
given up because it is late can write nothing that anybody reads. A word stands in a cache line of
its own and is written by one side. What a word tells of is written before it, and is left alone
until the other side's word says that it was used; what is written over all the same, because a pass
was given up, is told by its number.

File layout: the words, the order, its rows' lines, a letter, inputs, outputs.
"""

import mmap
import os
import struct
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from services.worker.device.assist.waiting import Bell

# Written by the worker, all but the last two; the bells ring behind what each side wrote.
LETTER, AWAKE, ASKED, CALLED, ANSWERED, TOLD = range(6)
NUM_WORDS = 6
LINE_BYTES = 64
PAGE_BYTES = 4096
LETTER_BYTES_MAX = 1 << 20
_OUTCOME_BITS = 8
SPEC_LETTER = 1  # the first one: what the helper works for
READY = struct.Struct("<q")  # what a started helper says: how many rows one core is given
IDLE_NS = 1_000_000_000  # without an order a helper takes a pass for over, and sleeps


class Outcome(IntEnum):
    """How an order ended."""

    DONE = 1
    REFUSED = 2  # a page is not the promised one, or the order is of a pass that is over


@dataclass(frozen=True, slots=True)
class Order:
    """Rows to compute.

    Attributes:
        letter: number of the letter that tells of its pass.
        site: by number.
    """

    letter: int
    layer: int
    site: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class ChannelShape:
    """Attributes:
    rows_max: of an order.
    in_bytes, out_bytes: of its inputs and outputs, at most.
    """

    rows_max: int
    in_bytes: int
    out_bytes: int


class Channel:
    """One side's view. Make with `create` (worker) or `attach` (helper); it goes with the last who
    holds it.

    Attributes:
        inputs: uint8, of one order.
        outputs: float32, of one order.
        lines: int32 ``[rows_max]``: adapter line of each of its rows.
        called, told: bells of the worker and of the helper.
    """

    def __init__(self, file_number: int, shape: ChannelShape) -> None:
        self.file_number = file_number
        parts = _parts(shape)
        whole = mmap.mmap(file_number, parts[-1])
        view = memoryview(whole)
        words, order, lines, letter, inputs, outputs = (
            view[begin:end] for begin, end in pairwise(parts)
        )
        self._words: npt.NDArray[np.uint64] = np.frombuffer(words, np.uint64)[:: LINE_BYTES // 8]
        address = self._words.ctypes.data
        self.called = Bell(address + CALLED * LINE_BYTES)
        self.told = Bell(address + TOLD * LINE_BYTES)
        self._order: npt.NDArray[np.int64] = np.frombuffer(order, np.int64)
        self._letter = letter
        self.lines: npt.NDArray[np.int32] = np.frombuffer(lines, np.int32)
        self.inputs: npt.NDArray[np.uint8] = np.frombuffer(inputs, np.uint8)
        self.outputs: npt.NDArray[np.float32] = np.frombuffer(outputs, np.float32)

    @classmethod
    def create(cls, shape: ChannelShape) -> "Channel":
        """Make the file; whoever gets its number can `attach` to it.

        Raises:
            OSError: there is no memory for it (it is reserved now, not at first touch).
        """
        file_number = os.memfd_create("symphony-assist", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(file_number, 0, _parts(shape)[-1])
            return cls(file_number, shape)
        except OSError:
            os.close(file_number)
            raise

    @classmethod
    def attach(cls, file_number: int, shape: ChannelShape) -> "Channel":
        """The other side's view of it."""
        return cls(file_number, shape)

    def close_file(self) -> None:
        """The mapping is enough."""
        os.close(self.file_number)
        self.file_number = -1

    def post(self, number: int, letter: bytes) -> None:
        """Put another letter in the place of the one before. To be called by the worker."""
        self._words[LETTER] = 0
        self._letter[:8] = len(letter).to_bytes(8, "little")
        self._letter[8 : 8 + len(letter)] = letter
        self._words[LETTER] = number
        self.called.ring()

    @property
    def letter_number(self) -> int:
        """Of the letter that is there; 0: one is being written."""
        return int(self._words[LETTER])

    def read_letter(self, number: int) -> bytes | None:
        """A letter; None: it is not there any more."""
        if self.letter_number != number:
            return None
        size = min(int.from_bytes(self._letter[:8], "little"), LETTER_BYTES_MAX)
        letter = bytes(self._letter[8 : 8 + size])
        return letter if self.letter_number == number else None

    @property
    def is_awake(self) -> bool:
        """Whether a pass is running."""
        return bool(self._words[AWAKE])

    @is_awake.setter
    def is_awake(self, value: bool) -> None:
        self._words[AWAKE] = value
        self.called.ring()

    def ask(self, number: int, order: Order) -> None:
        """Give an order whose inputs and lines are there. To be called by the worker.

        Args:
            number: above that of every order before it.
        """
        self._order[:4] = order.letter, order.layer, order.site, order.num_rows
        self._words[ASKED] = number
        self.called.ring()

    @property
    def asked(self) -> int:
        """Number of the last order."""
        return int(self._words[ASKED])

    def read_order(self) -> Order:
        """The last order."""
        return Order(*self._order[:4].tolist())

    def answer(self, number: int, outcome: Outcome) -> None:
        """End an order. To be called by the helper."""
        self._words[ANSWERED] = number << _OUTCOME_BITS | outcome
        self.told.ring()

    def outcome(self, number: int) -> Outcome | None:
        """How an order ended; None: it did not yet."""
        word = int(self._words[ANSWERED])
        if word >> _OUTCOME_BITS != number:
            return None
        return Outcome(word & ((1 << _OUTCOME_BITS) - 1))


def _parts(shape: ChannelShape) -> list[int]:
    """Where each part of the file begins, and where the last one ends."""
    sizes = (
        NUM_WORDS * LINE_BYTES,
        LINE_BYTES,
        4 * shape.rows_max,
        8 + LETTER_BYTES_MAX,
        shape.in_bytes,
        shape.out_bytes,
    )
    begins = [0]
    for size in sizes:
        begins.append(begins[-1] + -(-size // PAGE_BYTES) * PAGE_BYTES)
    return begins
