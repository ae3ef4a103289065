"""Whether a pool page's bytes are there: set by the mover, awaited inside the forward pass."""

import threading
import time

import numpy as np

READY, LOADING, FAILED = 0, 1, 2
STALL_TIMEOUT_NS = 1_000_000_000  # of one layer in one pass; then the row is recomputed


class PageGate:
    """One state for every pool page. Thread-safe; waiting costs nothing while all is ready."""

    def __init__(self, num_pages: int) -> None:
        self._state = np.zeros(num_pages, np.uint8)
        self._changed = threading.Condition()

    def set_loading(self, pages: list[int]) -> None:
        """Bytes are on their way into these pages."""
        self._state[pages] = LOADING

    def settle(self, good: list[int], bad: list[int]) -> None:
        """Loads ended; wakes whoever waits."""
        with self._changed:
            self._state[good] = READY
            self._state[bad] = FAILED
            self._changed.notify_all()

    def wait(self, pages: list[int], timeout_ns: int) -> bool:
        """Wait until every page is ready; False if a load failed or `timeout_ns` passed."""
        states = self._state[pages]
        if not states.any():
            return True
        deadline = time.monotonic_ns() + timeout_ns
        with self._changed:
            while (states := self._state[pages]).any():
                left_ns = deadline - time.monotonic_ns()
                if FAILED in states or left_ns <= 0:
                    return False
                self._changed.wait(left_ns / 1e9)
        return True
