"""Compiling a kernel for the first time, beside other processes that do the same.

numba keeps compiled code in a folder of the source's, so that it is compiled once a checkout. Here
that is made safe for several processes, and mostly one compiles and the others wait for it. The
wait has an end: whatever holds up another process, a process compiles for itself after a while.
"""

import fcntl
import logging
import os
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from numba.core.caching import IndexDataCacheFile

log = logging.getLogger(__name__)

LOCK_NAME = "symphony-compile.lock"
WAIT_S_MAX = 60.0
QUIET_S = 1.0  # a shorter wait is not logged
POLL_S = 0.05

_COMPILED: set[tuple[Any, Hashable]] = set()
_GAVE_UP: set[Path] = set()  # folders whose lock this process waited for in vain


@contextmanager
def compiling(folder: Path, what: str = "") -> Iterator[None]:
    """Wait for another process that compiles in `folder`, for `WAIT_S_MAX` at most and once in
    vain, and let others wait for this one.

    Args:
        folder: where numba keeps what is compiled; no other user may write there.
        what: is compiled, for the log.
    """
    with _opened(folder / LOCK_NAME) as lock:
        if lock is not None and _is_locked(lock, folder, what):
            with suppress(OSError):  # the disk is full: others log no process id
                os.ftruncate(lock, 0)
                os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield  # closing the file gives the lock back, and so does the process's death


def call_compiled(function: Callable[..., None], kind: Hashable, *arguments: Any) -> None:
    """Call a function of numba's; if it is to be compiled first, see `compiling`.

    Args:
        kind: what it is compiled for: all that differs from call to call in the arguments' types.
    """
    if (function, kind) in _COMPILED:
        function(*arguments)
        return
    with compiling(Path(function.stats.cache_path), function.__name__):  # type: ignore[attr-defined]
        function(*arguments)
    _COMPILED.add((function, kind))


@contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    """A file to lock; None: it cannot be made, and compiled code cannot be kept there either."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(path, flags, 0o600)
    except OSError as error:
        log.warning("no lock to compile under", extra={"path": str(path), "error": str(error)})
        yield None
        return
    try:
        yield lock
    finally:
        os.close(lock)


def _is_locked(lock: int, folder: Path, what: str) -> bool:
    """Whether this process holds the lock now; if not, it has waited for as long as it may."""
    began = time.monotonic()
    is_logged = False
    while not _try_lock(lock):
        waited_s = time.monotonic() - began
        details = {"kernel": what, "pid": _holder(lock), "folder": str(folder)}
        if folder in _GAVE_UP or waited_s >= WAIT_S_MAX:
            if folder not in _GAVE_UP:
                log.warning("another process compiles kernels too long: not waiting", extra=details)
            _GAVE_UP.add(folder)
            return False
        if waited_s >= QUIET_S and not is_logged:
            is_logged = True
            log.info(
                "waiting for another process that compiles kernels",
                extra={**details, "seconds_max": WAIT_S_MAX},
            )
        time.sleep(POLL_S)
    return True


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return False
    return True


def _holder(lock: int) -> str:
    """The process id that the lock's holder wrote; empty if it wrote none."""
    with suppress(OSError):
        return os.pread(lock, 20, 0).decode(errors="replace")
    return ""


def _save(self: Any, key: Any, data: Any) -> None:
    """Keep compiled code, in place of numba's own way: that gives the code of two signatures that
    two processes compile at the same time one name, and from then on one is loaded for the other.
    Here a name follows from what the code is of, and is in the index once the code is there. What
    the index loses when two write it is compiled again.
    """
    of = repr((self._source_stamp, key)).encode()
    name = self._data_name(int.from_bytes(blake2b(of, digest_size=8).digest()))
    try:
        self._save_data(name, data)
        self._save_index(self._load_index() | {key: name})
    except OSError as error:
        details = {"path": self._index_path, "error": str(error)}
        log.warning("compiled kernel not kept: it is compiled again next time", extra=details)


IndexDataCacheFile.save = _save
