"""Random bytes of the system's, fetched many at a time: each fetch is a call into the kernel, which
can take longer than what the bytes are for.
"""

import os
import threading
from collections.abc import Callable

FETCHED = 4096


class _Fetched:
    """What is left of the latest fetch. Threads may share it; a forked child fetches its own.

    Attributes:
        source: where bytes come from instead; None: from the system.
    """

    source: Callable[[int], bytes] | None = None

    def __init__(self) -> None:
        self.discard()
        os.register_at_fork(after_in_child=self.discard)

    def discard(self) -> None:
        self._lock = threading.Lock()
        self._bytes = b""
        self._at = 0

    def take(self, num: int) -> bytes:
        if self.source is not None:
            return self.source(num)
        with self._lock:
            if len(self._bytes) - self._at < num:
                self._bytes, self._at = os.urandom(max(FETCHED, num)), 0
            self._at += num
            return self._bytes[self._at - num : self._at]


_fetched = _Fetched()


def random_bytes(num: int) -> bytes:
    """So many bytes that cannot be guessed, and are returned only once."""
    return _fetched.take(num)


def take_from(source: Callable[[int], bytes] | None) -> None:
    """From now on take random bytes from `source`, for runs that are to repeat; None: from the
    system again.
    """
    _fetched.source = source
