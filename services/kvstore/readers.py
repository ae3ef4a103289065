"""Many read at a time; who puts something else in the place of what they read is alone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Readers:
    """A lock that any number of readers share and that one who changes things has alone. Once that
    one waits no other reader begins, so that the wait is no longer than the longest reading.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_reading = 0
        self._is_replacing = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """With others. Not again within itself."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_replacing)
            self._num_reading += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_reading -= 1
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
