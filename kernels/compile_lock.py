"""One process at a time compiles: numba's cache of compiled code is not made for two.

Two processes that compile different signatures of a function at the same moment give both files the
same name, and from then on the index names the wrong one: every later process fails at its call.
"""

import fcntl
import os
import tempfile
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOCK_PATH = Path(tempfile.gettempdir()) / f"symphony-compile-{os.getuid()}.lock"

_COMPILED: set[tuple[Any, Hashable]] = set()


@contextmanager
def compiling() -> Iterator[None]:
    """Wait until no other process of this user compiles, and keep the others waiting."""
    with LOCK_PATH.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file gives the lock back, and so does the process's death


def call_compiled(function: Callable[..., None], kind: Hashable, *arguments: Any) -> None:
    """Call a function of numba's, under the lock if it is to be compiled first.

    Args:
        kind: what it is compiled for: all that differs from call to call in the arguments' types.
    """
    if (function, kind) in _COMPILED:
        function(*arguments)
        return
    with compiling():
        function(*arguments)
    _COMPILED.add((function, kind))
