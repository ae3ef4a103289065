"""Random bytes of the system's, fetched many at a time: each fetch is a call into the kernel, which
can take longer than what the bytes are for.
"""

import os
import threading

FETCHED = 4096


class _Fetched:
    """What is left of the latest fetch. Threads may share it; a forked child fetches its own."""

    def __init__(self) -> None:
        self.discard()
        os.register_at_fork(after_in_child=self.discard)

    def discard(self) -> None:
        self._lock = threading.Lock()
        self._bytes = b""
        self._at = 0

    def take(self, num: int) -> bytes:
        with self._lock:
            if len(self._bytes) - self._at < num:
                self._bytes, self._at = os.urandom(max(FETCHED, num)), 0
            self._at += num
            return self._bytes[self._at - num : self._at]


_fetched = _Fetched()


def random_bytes(num: int) -> bytes:
    """So many bytes that cannot be guessed, and are returned only once."""
    return _fetched.take(num)
