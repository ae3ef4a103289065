"""The masks of one step, as they come."""

import time
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int32]  # of a mask: one bit a token, the first in the lowest
PATIENCE_S = 0.025  # of a step, once it has computed everything else


@dataclass(frozen=True, slots=True)
class Mask:
    """Attributes:
    words: int32 ``[ceil(vocab / 32)]``.
    why_none: why nothing can be said within the grammar any more; empty if something can.
    """

    words: Words
    why_none: str = ""


@dataclass(slots=True)
class Masks:
    """Attributes:
    coming: by row.
    slow: rows whose masks took long the last time, and are not waited for.
    ready, late, failed: after `wait`: masks, rows whose mask has not come, and rows that have
        none, and why.
    """

    coming: dict[int, "Future[Mask]"] = field(default_factory=dict)
    slow: set[int] = field(default_factory=set)
    ready: dict[int, Words] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)

    def wait(self) -> None:
        """Wait for all of them, as long as others may have to wait for that."""
        until = time.monotonic() + PATIENCE_S
        for row, future in self.coming.items():
            try:
                left_s = 0.0 if row in self.slow else until - time.monotonic()
                mask = future.result(max(left_s, 0.0))
            except TimeoutError:
                if row not in self.slow:
                    future.cancel()  # what has not begun, and may stand behind something slow
                self.late.add(row)
                continue
            if mask.why_none:
                self.failed[row] = mask.why_none
            else:
                self.ready[row] = mask.words


def allows(words: Words, vocab: int) -> npt.NDArray[np.bool_]:
    """bool ``[vocab]``: whether a mask allows each token; it knows nothing of those behind its end.

    >>> allows(np.array([5], np.int32), 34).nonzero()[0].tolist()
    [0, 2]
    """
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:vocab]
    if len(bits) < vocab:
        bits = np.pad(bits, (0, vocab - len(bits)))
    return bits.view(np.bool_)
