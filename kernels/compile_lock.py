"""One process at a time compiles: numba's cache of compiled code is not made for two.

Two processes that compile different signatures of a function at the same moment give both files the
same name, and from then on the index names the wrong one: every later process fails at its call.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_PATH = Path(tempfile.gettempdir()) / f"symphony-compile-{os.getuid()}.lock"


@contextmanager
def compiling() -> Iterator[None]:
    """Wait until no other process of this user compiles, and keep the others waiting."""
    with LOCK_PATH.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file gives the lock back, and so does the process's death
