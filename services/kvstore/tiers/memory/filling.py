"""An arena is served while it grows: memory comes behind its pages in the background."""

import logging
import os
import threading
from collections.abc import Callable

from shared.arena import Arena
from shared.runtime.numa import bind_thread, cpus_of_nodes

log = logging.getLogger(__name__)

CHUNK_BYTES = 16 * 1024 * 1024
THREADS_MAX = 4
PATIENCE_S = 5.0  # until others may have given memory back


class Filling:
    """Populates an arena's pages from `num_ready` on, by some threads side by side, as far as they
    are wanted. If the file system has no room for more it ends: the arena stays as large as it is.

    Args:
        num_ready: pages, from the first on, that have been populated.
        num_wanted: pages, from the first on, that are to be populated now; see `grow`.
        on_ready: called in those threads, with how many pages can be used from the first on, which
            only grows.
        may_take: whether so many bytes can be taken without harm to others; asked again until so.

    Attributes:
        num_ready: how many can be used now.
    """

    def __init__(
        self,
        arena: Arena,
        num_ready: int,
        num_wanted: int,
        on_ready: Callable[[int], None],
        may_take: Callable[[int], bool] = lambda num_bytes: True,
        num_threads: int = min(THREADS_MAX, os.cpu_count() or 1),
    ) -> None:
        self._arena = arena
        self._on_ready = on_ready
        self._may_take = may_take
        self._chunk_pages = max(CHUNK_BYTES // arena.page_bytes, 1)
        self._lock = threading.Condition()
        self._num_wanted = num_wanted
        self._num_max = arena.num_pages
        self._next = num_ready  # first page that is not begun
        self._done: dict[int, int] = {}  # pages behind a gap: from the first of a chunk to its end
        self._is_over = False
        self._is_short = False  # memory was, once
        self.num_ready = num_ready
        self._threads = [
            threading.Thread(
                target=self._work, args=(number,), name=f"kv-filling-{number}", daemon=True
            )
            for number in range(num_threads if num_ready < arena.num_pages else 0)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def num_bytes_left(self) -> int:
        """Memory that it takes now."""
        if self._is_over:
            return 0
        return max(self._num_to_take - self.num_ready, 0) * self._arena.page_bytes

    @property
    def num_bytes_max(self) -> int:
        """What the arena may grow to."""
        return (self.num_ready if self._is_over else self._num_max) * self._arena.page_bytes

    def grow(self, num_pages: int) -> None:
        """So many pages are wanted, from the first on."""
        with self._lock:
            self._num_wanted = max(self._num_wanted, num_pages)
            self._lock.notify_all()

    def limit(self, num_bytes: int) -> None:
        """Populate no pages beyond this; those that are stay."""
        with self._lock:
            self._num_max = max(min(num_bytes // self._arena.page_bytes, self._num_max), self._next)

    def stop(self) -> None:
        """Populate nothing more; returns when the arena is not touched any more."""
        with self._lock:
            self._is_over = True
            self._lock.notify_all()
        self.join()

    def join(self) -> None:
        """Wait until it has ended: no more can be wanted of it, or there is no room."""
        for thread in self._threads:
            thread.join()

    def _work(self, number: int) -> None:
        # Workers of all NUMA nodes share the arena: a thread a node takes memory from all of them.
        if len(nodes := cpus_of_nodes()) > 1:
            bind_thread(nodes[number % len(nodes)])
        while (chunk := self._take()) is not None:
            first, end = chunk
            try:
                self._arena.populate(first, end - first)
            except OSError as error:
                self._give_up(error)
                return
            self._end(first, end)

    @property
    def _num_to_take(self) -> int:
        return min(self._num_wanted, self._num_max)

    def _take(self) -> tuple[int, int] | None:
        """The next chunk, once it is wanted: its first page, and the one behind its last."""
        with self._lock:
            while not self._is_over and self._next < self._arena.num_pages:
                first, end = self._next, min(self._next + self._chunk_pages, self._num_to_take)
                if first >= end:
                    self._lock.wait()  # for `grow` or `stop`
                elif self._may_take((end - first) * self._arena.page_bytes):
                    self._next = end
                    return first, end
                else:
                    self._on_shortage()
                    self._lock.wait(PATIENCE_S)
            return None

    def _on_shortage(self) -> None:
        if not self._is_short:
            self._is_short = True
            log.warning(
                "the machine has no memory to spare: the arena waits with growing",
                extra={"path": str(self._arena.path), "num_pages": self.num_ready},
            )

    def _end(self, first: int, end: int) -> None:
        with self._lock:
            self._done[first] = end
            before = self.num_ready
            while (end_of_next := self._done.pop(self.num_ready, None)) is not None:
                self.num_ready = end_of_next
            if self.num_ready > before:
                self._arena.filled[0] = self.num_ready
                self._on_ready(self.num_ready)

    def _give_up(self, error: OSError) -> None:
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            log.error(
                "no memory for all of the arena: it stays smaller",
                extra={
                    "path": str(self._arena.path),
                    "num_pages": self.num_ready,
                    "num_pages_wanted": self._num_to_take,
                    "error": error.strerror,
                },
            )
