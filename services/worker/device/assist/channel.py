"""The memory that a helper shares with the worker, and the words by which they tell each other that
something is in it.

A file without a name, one for each helper: it ends with the two processes, and a helper that is
abandoned because it is late can write nothing that is read. A word stands in a cache line of
its own and is written by one side. What a word announces is written before it, and is left alone
until the other side's word says that it was used; what is overwritten nevertheless, because a pass
was abandoned, is named by its number. Orders and letters stand in rings, so that the worker can
write all of a pass, and of the next one, before a device's stream, which gives one order after
another, has come to the first.

File layout: the words, orders, their rows' lines, letters, inputs, outputs.
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

# Written by the worker, all but the last two; the bells ring behind what each side wrote. Behind
# them the helper has a word for each letter's place: the last letter of which it refused an order.
LETTER, AWAKE, ASKED, CALLED, ANSWERED, FINISHED = range(6)
NUM_WORDS = 6
LINE_BYTES = 64
ORDER_NUMBERS = 8  # a cache line
PAGE_BYTES = 4096
LETTER_BYTES_MAX = 1 << 20
_LETTER_HEAD = struct.Struct("<qq")  # number, 0 while it is written; bytes
LETTER_SLOT_BYTES = LETTER_BYTES_MAX + LINE_BYTES
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
        letter: number of the letter that announces its pass.
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
    orders_max: that may be written before the first of them is over.
    letters_max: that may be posted before the pass of the first of them is over.
    """

    rows_max: int
    in_bytes: int
    out_bytes: int
    orders_max: int = 1
    letters_max: int = 1


class Channel:
    """One side's view. Make with `create` (worker) or `attach` (helper); it goes with the last who
    holds it.

    Attributes:
        memory: uint8, all of it.
        inputs: uint8, of one order.
        outputs: float32, of one order.
        called, done: bells of the worker and of the helper.
    """

    def __init__(self, file_number: int, shape: ChannelShape) -> None:
        self.file_number = file_number
        parts = _parts(shape)
        view = memoryview(mmap.mmap(file_number, parts[-1]))
        words, orders, lines, letters, inputs, outputs = (
            view[begin:end] for begin, end in pairwise(parts)
        )
        self.memory: npt.NDArray[np.uint8] = np.frombuffer(view, np.uint8)
        self._words: npt.NDArray[np.uint64] = np.frombuffer(words, np.uint64)[:: LINE_BYTES // 8]
        address = self._words.ctypes.data
        self.called = Bell(address + CALLED * LINE_BYTES)
        self.done = Bell(address + FINISHED * LINE_BYTES)
        num_orders = shape.orders_max
        self._orders: npt.NDArray[np.int64] = np.frombuffer(orders, np.int64)
        self._orders = self._orders[: num_orders * ORDER_NUMBERS].reshape(num_orders, -1)
        self._lines: npt.NDArray[np.int32] = np.frombuffer(lines, np.int32)
        self._lines = self._lines[: num_orders * shape.rows_max].reshape(num_orders, -1)
        self._letters = [
            letters[at * LETTER_SLOT_BYTES :][:LETTER_SLOT_BYTES] for at in range(shape.letters_max)
        ]
        self.inputs: npt.NDArray[np.uint8] = np.frombuffer(inputs, np.uint8)
        self.outputs: npt.NDArray[np.float32] = np.frombuffer(outputs, np.float32)

    @classmethod
    def create(cls, shape: ChannelShape) -> "Channel":
        """Make the file; a process that gets its number can `attach` to it.

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
        """Put a letter in its place. To be called by the worker."""
        slot = self._letters[number % len(self._letters)]
        slot[:16] = _LETTER_HEAD.pack(0, len(letter))
        slot[16 : 16 + len(letter)] = letter
        slot[:16] = _LETTER_HEAD.pack(number, len(letter))
        self._words[LETTER] = number
        self.called.ring()

    @property
    def letter_number(self) -> int:
        """Of the last letter."""
        return int(self._words[LETTER])

    def read_letter(self, number: int) -> bytes | None:
        """A letter; None: it is not there any more."""
        slot = self._letters[number % len(self._letters)]
        its_number, size = _LETTER_HEAD.unpack(slot[:16])
        if its_number != number:
            return None
        letter = bytes(slot[16 : 16 + min(size, LETTER_BYTES_MAX)])
        return letter if _LETTER_HEAD.unpack(slot[:16])[0] == number else None

    @property
    def is_awake(self) -> bool:
        """Whether a pass is running."""
        return bool(self._words[AWAKE])

    @is_awake.setter
    def is_awake(self, value: bool) -> None:
        self._words[AWAKE] = value
        self.called.ring()

    def write_order(self, number: int, order: Order, lines: npt.NDArray[np.int32]) -> None:
        """Put an order in its place; `ask`, or the word at `asked_address`, gives it.

        Args:
            number: one above that of the order before it.
            lines: int32 ``[num_rows]``: adapter line of each of its rows.
        """
        at = number % len(self._orders)
        self._orders[at, :4] = order.letter, order.layer, order.site, order.num_rows
        self._lines[at, : len(lines)] = lines

    def ask(self, number: int) -> None:
        """Give an order that is written, and whose inputs are there. To be called by the worker."""
        self._words[ASKED] = number
        self.called.ring()

    @property
    def asked_address(self) -> int:
        """Of the word that gives the order of the number that is written there."""
        return self._words.ctypes.data + ASKED * LINE_BYTES

    @property
    def answered_address(self) -> int:
        """Of the word that is `over` or more when an order is."""
        return self._words.ctypes.data + ANSWERED * LINE_BYTES

    @property
    def asked(self) -> int:
        """Number of the last order."""
        return int(self._words[ASKED])

    def read_order(self, number: int) -> Order:
        """An order."""
        return Order(*self._orders[number % len(self._orders), :4].tolist())

    def read_lines(self, number: int, num_rows: int) -> npt.NDArray[np.int32]:
        """Adapter line of each row of an order."""
        return self._lines[number % len(self._lines), :num_rows].copy()

    def answer(self, number: int, letter: int, outcome: Outcome) -> None:
        """End an order of a letter. To be called by the helper."""
        if outcome is Outcome.REFUSED:
            self._words[NUM_WORDS + letter % len(self._letters)] = letter
        self._words[ANSWERED] = over(number) | outcome
        self.done.ring()

    def has_done(self, number: int, letter: int) -> bool:
        """Whether all orders of a letter up to this one are done; later ones may be as well."""
        is_over = int(self._words[ANSWERED]) >= over(number)
        return is_over and int(self._words[NUM_WORDS + letter % len(self._letters)]) != letter

    def let_past(self, number: int) -> None:
        """End all orders up to this one, in the place of a helper that has ended or is about to."""
        self._words[ANSWERED] = over(number) | Outcome.REFUSED

    def outcome(self, number: int) -> Outcome | None:
        """How an order ended; None: it did not yet."""
        word = int(self._words[ANSWERED])
        if word >> _OUTCOME_BITS != number:
            return None
        return Outcome(word & ((1 << _OUTCOME_BITS) - 1))


def over(number: int) -> int:
    """What a helper's word is at least when it has ended an order, one way or the other."""
    return number << _OUTCOME_BITS


def _parts(shape: ChannelShape) -> list[int]:
    """Where each part of the file begins, and where the last one ends."""
    sizes = (
        (NUM_WORDS + shape.letters_max) * LINE_BYTES,
        8 * ORDER_NUMBERS * shape.orders_max,
        4 * shape.rows_max * shape.orders_max,
        LETTER_SLOT_BYTES * shape.letters_max,
        shape.in_bytes,
        shape.out_bytes,
    )
    begins = [0]
    for size in sizes:
        begins.append(begins[-1] + -(-size // PAGE_BYTES) * PAGE_BYTES)
    return begins
