"""An arena's memory is registered with a device piece by piece, in the background.

To register host memory takes a device longer than to fill it, and what has no memory behind it yet
cannot be registered at all. So an arena is used from the moment it is there, and its pieces become
fast one after another.
"""

import logging
import math
import threading
from typing import Protocol

import numpy as np

from kernels.page_sums.select import PageNumbers
from shared.arena import Arena, Bytes
from shared.errors import SymphonyError
from shared.runtime.metrics import counter

log = logging.getLogger(__name__)

ARENA_PIECES = counter(
    "arena_pieces", "Pieces of arenas that the device was to address, by outcome", ["outcome"]
)

# A device may do nothing else while it registers: some 20 ms.
PIECE_BYTES = 64 * 1024 * 1024
POLL_S = 0.05  # between two looks at how far memory has come
_SYSTEM_PAGE_BYTES = 4096  # no two pieces may share one


class HostMemory(Protocol):
    """A device, as far as host memory is registered with it: each piece by one thread."""

    def register(self, memory: Bytes) -> None:
        """Have the device address this memory: seconds for some gigabytes.

        Raises:
            SymphonyError: it does not.
        """
        ...

    def unregister(self, memory: Bytes) -> None:
        """It does not address this memory any more, which was registered as it is."""
        ...


class Pieces:
    """What of an arena is registered. A thread registers the pieces in order, each as soon as it
    has memory; one that the device refuses stays as it is, and the others are tried all the same.

    Args:
        piece_bytes: of a piece, at least, but for the last one.
    """

    def __init__(self, arena: Arena, device: HostMemory, piece_bytes: int = PIECE_BYTES) -> None:
        self._memory = arena.pages  # a view keeps the mapping, and does not keep the arena
        self._filled = arena.filled
        self._path = str(arena.path)
        self._device = device
        self._piece_pages = _pages_in(piece_bytes, arena.page_bytes)
        self._is_known = np.zeros(-(-arena.num_pages // self._piece_pages), np.bool_)
        self._is_whole = False
        self._has_failed = False
        self._are_tried = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kv-register", daemon=True)
        self._thread.start()

    def have(self, pages: PageNumbers) -> bool:
        """Whether all these pages are registered."""
        if self._is_whole:
            return True
        return bool(self._is_known[np.asarray(pages, np.int64) // self._piece_pages].all())

    def wait(self) -> None:
        """Until every piece was tried, which takes as long as memory takes to come."""
        self._are_tried.wait()

    def let_go(self) -> None:
        """Have everything unregistered: nothing is copied from or to the arena any more. Does not
        wait for it.
        """
        self._stopping.set()

    def close(self) -> None:
        """`let_go`, and wait for it."""
        self.let_go()
        self._thread.join()

    def _run(self) -> None:
        for number in range(len(self._is_known)):
            if not self._wait_filled(min((number + 1) * self._piece_pages, len(self._memory))):
                break
            self._register(number, self._piece(number))
        else:
            self._is_whole = bool(self._is_known.all())
            self._are_tried.set()
            self._stopping.wait()
        known = np.flatnonzero(self._is_known).tolist()
        self._is_whole = False
        self._is_known[:] = False
        for number in known:
            self._device.unregister(self._piece(number))
        self._are_tried.set()

    def _piece(self, number: int) -> Bytes:
        first = number * self._piece_pages
        return self._memory[first : first + self._piece_pages]

    def _wait_filled(self, num_pages: int) -> bool:
        """Whether there is memory behind so many pages; not, if this ends before."""
        while not self._stopping.is_set():
            if self._filled[0] >= num_pages:
                return True
            self._stopping.wait(POLL_S)
        return False

    def _register(self, number: int, piece: Bytes) -> None:
        try:
            self._device.register(piece)
        except SymphonyError as error:
            if not self._has_failed:
                self._has_failed = True
                log.warning(
                    "part of the arena is not registered: its pages are copied twice",
                    extra={"path": self._path, "error": error.message},
                )
            ARENA_PIECES.labels("refused").inc()
            return
        self._is_known[number] = True
        ARENA_PIECES.labels("registered").inc()


def _pages_in(piece_bytes: int, page_bytes: int) -> int:
    """How many pages a piece has, so that it ends where a page of the system does.

    >>> _pages_in(10_000, 4096), _pages_in(10_000, 256), _pages_in(1, 6144)
    (3, 48, 2)
    """
    step = _SYSTEM_PAGE_BYTES // math.gcd(_SYSTEM_PAGE_BYTES, page_bytes)
    return -(-piece_bytes // (page_bytes * step)) * step
