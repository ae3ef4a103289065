"""Threads with room for deep recursion, in libraries that have no bound of their own for it."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

STACK_BYTES = 256 * 1024 * 1024  # of addresses: memory is what is used of it
_LOCK = threading.Lock()


class DeepThreads(ThreadPoolExecutor):
    """Starts its threads with large stacks."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """As of any executor; a thread may be started here."""
        with _LOCK:
            before = threading.stack_size(STACK_BYTES)
            try:
                return super().submit(fn, *args, **kwargs)
            finally:
                threading.stack_size(before)
