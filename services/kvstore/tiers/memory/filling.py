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


class Filling:
    """Populates an arena's pages from `num_ready` on, by some threads side by side. Without memory
    for all of them it ends early: the arena stays as large as it is.

    Args:
        num_ready: pages, from the first on, that have been populated.
        on_ready: called in those threads, with how many pages can be used from the first on, which
            only grows.

    Attributes:
        num_ready: how many can be used now.
    """

    def __init__(
        self,
        arena: Arena,
        num_ready: int,
        on_ready: Callable[[int], None],
        num_threads: int = min(THREADS_MAX, os.cpu_count() or 1),
    ) -> None:
        self._arena = arena
        self._on_ready = on_ready
        self._chunk_pages = max(CHUNK_BYTES // arena.page_bytes, 1)
        self._lock = threading.Lock()
        self._next = num_ready  # first page that is not begun
        self._done: dict[int, int] = {}  # pages behind a gap: from the first of a chunk to its end
        self._is_over = False
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
        """Memory that it will still take."""
        if self._is_over:
            return 0
        return (self._arena.num_pages - self.num_ready) * self._arena.page_bytes

    def stop(self) -> None:
        """Populate nothing more; returns when the arena is not touched any more."""
        with self._lock:
            self._is_over = True
        self.join()

    def join(self) -> None:
        """Wait until it has ended."""
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

    def _take(self) -> tuple[int, int] | None:
        """The next chunk: its first page, and the one behind its last."""
        with self._lock:
            first = self._next
            if self._is_over or first == self._arena.num_pages:
                return None
            self._next = min(first + self._chunk_pages, self._arena.num_pages)
            return first, self._next

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
                    "num_pages_wanted": self._arena.num_pages,
                    "error": error.strerror,
                },
            )
