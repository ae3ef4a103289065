"""What of a file the kernel holds in memory."""

import ctypes
import mmap
import os
from pathlib import Path

HELD_MAX = 0.01  # of a file that counts as dropped


def drop_cached(path: Path) -> bool:
    """Have the kernel forget a file's pages, which no process may have mapped; whether it did."""
    file_number = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file_number, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file_number)
    return cached_share(path) <= HELD_MAX


def drop_kvstore_files(directory: Path) -> bool:
    """Have the kernel forget what a kvstore that has ended left in files; whether it did."""
    os.sync()
    paths = [*directory.rglob("data.mdb"), *directory.rglob("*.slab")]
    dropped = [drop_cached(path) for path in paths]  # each, also behind one that stays
    return all(dropped)


def cached_share(path: Path) -> float:
    """How much of a file is in memory, by mincore(2).

    Raises:
        OSError: the kernel does not say.
    """
    num_bytes = path.stat().st_size
    if not num_bytes:
        return 0.0
    num_pages = -(-num_bytes // mmap.PAGESIZE)
    held = (ctypes.c_ubyte * num_pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as mapped:
        start = ctypes.c_char.from_buffer(mapped)
        try:
            address = ctypes.c_void_p(ctypes.addressof(start))
            if libc.mincore(address, ctypes.c_size_t(num_bytes), held):
                raise OSError(ctypes.get_errno(), "mincore")
        finally:
            del start
    return sum(each & 1 for each in held) / num_pages
