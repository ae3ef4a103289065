"""Whether a pool page's bytes are there: set by the mover, awaited by the step that reads them."""

import threading
import time
from collections import Counter

import numpy as np

from kernels.page_sums.select import PageNumbers
from services.worker.device.copying.copies import Copy

READY, LOADING, COPYING, FAILED = range(4)
NO_COPY = 0
STALL_TIMEOUT_NS = 1_000_000_000  # of copies that a pass ran behind; then its row is void
# Of an adapter: it was forecast to be here, others in the batch wait too, and its own turns can
# wait without them.
ADAPTER_STALL_NS = 20_000_000


class PageGate:
    """One state for every pool page. Thread-safe; waiting costs nothing while all is ready.

    A page is loading from its order on, copying once its copy was started, and ready when the bytes
    have been found to be the promised ones.
    """

    def __init__(self, num_pages: int) -> None:
        self._state = np.zeros(num_pages, np.uint8)
        self._copies: dict[int, Copy] = {}  # under way, by number
        self._copy_of = np.zeros(num_pages, np.int64)  # its number, of a page that is copying
        self._num_left: dict[int, int] = {}  # of each copy: pages that are not settled
        self._num_copies = 0
        self._changed = threading.Condition()

    def set_loading(self, pages: PageNumbers) -> None:
        """These pages are loading."""
        self._state[pages] = LOADING

    def set_copying(self, pages: PageNumbers, copy: Copy) -> None:
        """Their copy was started."""
        with self._changed:
            self._num_copies += 1
            number = self._num_copies
            self._copies[number], self._num_left[number] = copy, len(pages)
            self._copy_of[pages] = number
            self._state[pages] = COPYING
            self._changed.notify_all()

    def settle(self, good: PageNumbers, bad: PageNumbers) -> None:
        """Loads ended; wakes those that wait."""
        with self._changed:
            for pages, state in ((good, READY), (bad, FAILED)):
                if len(pages):
                    at = np.asarray(pages, np.int64)
                    self._state[at] = state
                    for number, count in Counter(self._copy_of[at].tolist()).items():
                        self._leave(number, count)
                    self._copy_of[at] = NO_COPY
            self._changed.notify_all()

    def _leave(self, number: int, num_pages: int) -> None:
        """So many pages of a copy are settled."""
        if number != NO_COPY:
            self._num_left[number] -= num_pages
            if not self._num_left[number]:
                del self._num_left[number], self._copies[number]

    def has(self, pages: list[int]) -> bool:
        """Whether every page is ready."""
        return not self._state[pages].any()

    def has_started(self, pages: list[int]) -> bool:
        """Whether every page is ready, or being copied: then it is soon."""
        states = self._state[pages]
        return bool(((states == READY) | (states == COPYING)).all())

    def wait(self, pages: list[int], timeout_ns: int) -> bool:
        """Wait until every page is ready; False if a load failed or `timeout_ns` passed."""
        if self.has(pages):
            return True
        with self._changed:
            return self._wait(pages, COPYING, timeout_ns)

    def wait_started(self, pages: list[int], timeout_ns: int) -> list[Copy] | None:
        """Wait until every page is ready or its copy was started; None if a load failed or
        `timeout_ns` passed.

        Returns:
            The copies to run behind. Whether their bytes are the promised ones turns out later:
            `wait` says.
        """
        if self.has(pages):
            return []
        with self._changed:
            if not self._wait(pages, LOADING, timeout_ns):
                return None
            numbers = dict.fromkeys(self._copy_of[pages].tolist())
            return [self._copies[number] for number in numbers if number != NO_COPY]

    def _wait(self, pages: list[int], latest: int, timeout_ns: int) -> bool:
        """Until no page is in the states from loading to `latest`; called with the lock."""
        deadline = time.monotonic_ns() + timeout_ns
        while True:
            states = self._state[pages]
            if (states == FAILED).any():
                return False
            if not ((states != READY) & (states <= latest)).any():
                return True
            left_ns = deadline - time.monotonic_ns()
            if left_ns <= 0:
                return False
            self._changed.wait(left_ns / 1e9)
