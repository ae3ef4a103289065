"""Keeps logs from filling the disk: a large one is copied aside and emptied where it is.

Emptied, not renamed: the process that writes it keeps its file open, and is not asked to do
anything. It writes at the end (``O_APPEND``), which is then the beginning. What it writes between
the end of the copy and the emptying is lost; nothing else is.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import FileIO
from pathlib import Path

from shared.errors import reason

CHECK_EVERY_NS = 10_000_000_000
NUM_KEPT = 3
CHUNK_BYTES = 1 << 20
EXCESS_MAX = 4  # times its size at first; who writes faster than we copy loses the rest


def oversized(sizes: Iterable[tuple[Path, int]], bytes_max: int) -> list[Path]:
    """Logs to put aside; with a limit of 0 none.

    >>> oversized([(Path("a.log"), 11), (Path("b.log"), 10)], bytes_max=10)[0].name
    'a.log'
    """
    return [path for path, num_bytes in sizes if num_bytes > bytes_max > 0]


class LogKeeper:
    """Rotates the logs of a folder. The time is an argument.

    Args:
        bytes_max: size above which a log is put aside; 0: never.
        complain: called once for a log that cannot be rotated, until it can be again.
    """

    def __init__(self, folder: Path, bytes_max: int, complain: Callable[[str], None]) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._complain = complain
        self._next_at_ns = 0
        self._troubled: set[Path] = set()

    def next_at_ns(self) -> int | None:
        """When to look next; None: never."""
        return self._next_at_ns if self._bytes_max else None

    def look(self, now_ns: int) -> None:
        """Put aside what has grown too large, if it is time to look. Never raises: a log that stays
        is no reason to stop a deployment.
        """
        if not self._bytes_max or now_ns < self._next_at_ns:
            return
        self._next_at_ns = now_ns + CHECK_EVERY_NS
        for path in oversized(_sizes(self._folder), self._bytes_max):
            try:
                put_aside(path)
                self._troubled.discard(path)
            except OSError as error:
                if path not in self._troubled:
                    self._troubled.add(path)
                    self._complain(f"{path} grows: it cannot be put aside: {reason(error)}")


def put_aside(path: Path) -> None:
    """Copy a log to ``.1``, what was there to ``.2`` and so on, and empty it.

    Raises:
        OSError: it could not be copied, and is as it was; so are the earlier ones.
    """
    new = path.with_name(f"{path.name}.new")
    with path.open("r+b", buffering=0) as log:
        room = os.fstat(log.fileno()).st_size * EXCESS_MAX
        try:
            with new.open("wb", buffering=0) as copy:
                room = _copy(log, copy, room)
                for number in range(NUM_KEPT - 1, 0, -1):
                    with suppress(FileNotFoundError):
                        kept(path, number).replace(kept(path, number + 1))
                new.replace(kept(path, 1))
                with suppress(OSError):  # what came meanwhile
                    _copy(log, copy, room)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        log.truncate(0)


def _copy(log: FileIO, copy: FileIO, room: int) -> int:
    """Copy until nothing new comes, at most `room` bytes; how many more there is room for."""
    while room > 0 and (chunk := log.read(CHUNK_BYTES)):
        view = memoryview(chunk)
        while view:  # a disk that is nearly full takes a part
            view = view[copy.write(view) :]
        room -= len(chunk)
    return room


def kept(path: Path, number: int) -> Path:
    """Where the copy of a log is: number 1 is the newest."""
    return path.with_name(f"{path.name}.{number}")


def _sizes(folder: Path) -> list[tuple[Path, int]]:
    found = []
    with suppress(OSError):  # it is made with the first log
        for path in sorted(folder.glob("*.log")):
            with suppress(OSError):
                found.append((path, path.stat().st_size))
    return found
