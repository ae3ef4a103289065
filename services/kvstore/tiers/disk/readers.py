"""Many threads read at a time; one that replaces what they read is alone, or waits for those that
began before.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Readers:
    """A lock that any number of readers share and that a replacement has alone. Once that waits no
    other reader begins, so that the wait is no longer than the longest reading.

    Every reading belongs to the epoch in which it began.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._epoch = 0
        self._num_reading: Counter[int] = Counter()  # by epoch
        self._is_replacing = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """With others. Not again within itself."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_replacing)
            epoch = self._epoch
            self._num_reading[epoch] += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_reading[epoch] -= 1
                if not self._num_reading[epoch]:
                    del self._num_reading[epoch]
                    self._changed.notify_all()

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Alone; one thread only."""
        with self._changed:
            assert not self._is_replacing, "one thread replaces"
            self._is_replacing = True
            self._changed.wait_for(lambda: not self._num_reading)
        try:
            yield
        finally:
            with self._changed:
                self._is_replacing = False
                self._changed.notify_all()

    def next_epoch(self) -> int:
        """Begin another epoch: readings in it, or later, began after this call."""
        with self._changed:
            self._epoch += 1
            return self._epoch

    def oldest_epoch(self) -> int:
        """Of the readings under way; the current one if there is none."""
        with self._changed:
            return self._oldest()

    def wait_for(self, epoch: int, timeout_s: float) -> None:
        """Until all readings under way began in this epoch or later, but no longer than that."""
        with self._changed:
            self._changed.wait_for(lambda: self._oldest() >= epoch, timeout_s)

    def _oldest(self) -> int:
        return min(self._num_reading, default=self._epoch)
