"""Which process listens on a port."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
LISTENING = "0A"  # a TCP state, as the kernel writes it
TABLES = ("net/tcp", "net/tcp6")


def listener(port: int) -> str | None:
    """Name and id of the process that listens on a port of this machine; None: it cannot be seen,
    as another user's.
    """
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not sockets:
        return None
    for process in PROC.iterdir():
        if process.name.isdecimal() and sockets & set(_files(process)):
            with suppress(OSError):
                return f"{(process / 'comm').read_text().strip()} (process {process.name})"
    return None


def _inodes(port: int) -> Iterator[str]:
    """Of the sockets that listen on it, whatever their address."""
    for table in TABLES:
        with suppress(OSError):
            for line in (PROC / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _files(process: Path) -> Iterator[str]:
    """What a process has open; nothing of another user's."""
    with suppress(OSError):
        for link in (process / "fd").iterdir():
            with suppress(OSError):
                yield os.readlink(link)
