"""The host's DRAM arena: a shared-memory file of equal pages, each with a word for its
state.

The kvstore owns the arena and decides what is where; workers map the same file and look at a page's
word without a message. A word holds a generation and a state. The generation grows whenever a page
is reused, so a reader that copies a page and then finds the word unchanged knows
that the bytes are the ones it was promised (a seqlock with the kvstore as the only writer of
words).

File layout: one 4 KiB header, in which a word says how far memory has come, the words (uint64
each), padding to 4 KiB, the pages.
"""

import ctypes
import errno
import mmap
import os
import struct
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash
from typing_extensions import Buffer

from shared.errors import SymphonyError
from shared.private import make_new

MAGIC = b"SYMARENA"
VERSION = 2
HEADER_BYTES = 4096
_HEADER = struct.Struct(
    "<8sIIQQQ"
)  # magic, version, padding, pages, page bytes, offset of the first page
_FILLED_AT = 64  # in a cache line of its own
_FILLED = struct.Struct("<Q")
_STATE_BITS = 8
_SYSTEM_PAGE_BYTES = 4096
_POPULATE_WRITE = 23  # of madvise(2), from Linux 5.14 on
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
States = npt.NDArray[np.uint8]
Pages = npt.NDArray[np.int64]


class PageState(IntEnum):
    """What a reader may expect of a page."""

    FREE = 0  # unowned
    FILLING = 1  # promised: bytes are being loaded
    READY = 2  # bytes are there
    BAD = 3  # will not come: lost, or its checksum was wrong


class ArenaError(SymphonyError):
    """The file is no arena of this release, or of another shape than expected."""


def checksum(page: Buffer) -> int:
    """xxh3-64 of a page's bytes."""
    return xxhash.xxh3_64_intdigest(page)


def ready_words(generations: npt.ArrayLike) -> Words:
    """The words of pages that hold what was promised under these generations."""
    return np.array(generations, np.uint64) << np.uint64(_STATE_BITS) | np.uint64(PageState.READY)


class ArenaView:
    """An arena's words and pages, in whatever memory they are.

    Attributes:
        path: of the file, by which workers find the arena.
        words: uint64 [num_pages]; written by the kvstore only.
        pages: uint8 [num_pages, page_bytes].
    """

    def __init__(self, path: Path, words: Words, pages: Bytes) -> None:
        self.path = path
        self.words = words
        self.pages = pages
        self.num_pages: int = pages.shape[0]
        self.page_bytes: int = pages.shape[1]

    def word(self, page: int) -> tuple[int, PageState]:
        """Generation and state of a page."""
        value = int(self.words[page])
        return value >> _STATE_BITS, PageState(value & 0xFF)

    def set_word(self, page: int, generation: int, state: PageState) -> None:
        """Publish a page's state; the kvstore's alone to call."""
        self.words[page] = generation << _STATE_BITS | state

    def set_words(self, pages: list[int], generations: list[int], state: PageState) -> None:
        """`set_word` of many pages, of which none is named twice: each is one aligned store of
        eight bytes, so that a reader sees the old word or the new one; in no order.
        """
        words = np.array(generations, np.uint64)
        words <<= np.uint64(_STATE_BITS)
        words |= np.uint64(state)
        self.words[pages] = words

    def promise(self, page: int, generation: int) -> PageState:
        """How the bytes promised under `generation` stand, from one look at the word: FILLING,
        READY, or BAD when they will not come (any more).

        One look, because the word may change between two.
        """
        found, state = self.word(page)
        if found != generation or state is PageState.FREE:
            return PageState.BAD
        return state

    def promises(self, pages: list[int] | Pages, generations: list[int] | Words) -> States:
        """`promise` of many pages, from one look at each word; uint8 [len(pages)]."""
        words = self.words[pages]
        states = (words & np.uint64(0xFF)).astype(np.uint8)
        is_other = words >> np.uint64(_STATE_BITS) != np.asarray(generations, np.uint64)
        states[is_other | (states == PageState.FREE)] = PageState.BAD
        return states

    def hold(self, pages: Pages, ready_words: Words) -> bool:
        """Whether all these pages hold what was promised, from one look at each word.

        Args:
            ready_words: `ready_words` of the generations of the promises.
        """
        return bool((self.words[pages] == ready_words).all())


class Arena(ArenaView):
    """A mapped arena. Make with `create` (kvstore) or `attach` (worker); `close` unmaps.

    Attributes:
        identity: device and inode of the file: its path may lead to a newer one.
        filled: uint64 [1], shared: how many pages, from the first on, have memory behind them; it
            only grows, and the kvstore alone writes it.
    """

    def __init__(
        self, path: Path, file_number: int, num_pages: int, page_bytes: int, first: int
    ) -> None:
        status = os.fstat(file_number)
        self.identity = (status.st_dev, status.st_ino)
        self._map = mmap.mmap(file_number, first + num_pages * page_bytes)
        words: Words = np.frombuffer(self._map, np.uint64, num_pages, HEADER_BYTES)
        pages: Bytes = np.frombuffer(self._map, np.uint8, num_pages * page_bytes, first)
        super().__init__(path, words, pages.reshape(num_pages, page_bytes))
        self.filled: Words = np.frombuffer(self._map, np.uint64, 1, _FILLED_AT)

    @classmethod
    def create(
        cls, path: Path, num_pages: int, page_bytes: int, num_reserved: int | None = None
    ) -> "Arena":
        """Make a new file (an old one is replaced, not truncated, so its readers keep their
        mapping).

        Args:
            num_reserved: pages, from the first on, whose memory is reserved now; all by default.
                Others are to be populated before they are touched.

        Raises:
            OSError: no room for it (memory is reserved now, not at first touch).
        """
        reserved = num_pages if num_reserved is None else num_reserved
        assert num_pages > 0 and page_bytes > 0
        words_end = HEADER_BYTES + 8 * num_pages
        first = -(-words_end // _SYSTEM_PAGE_BYTES) * _SYSTEM_PAGE_BYTES
        temporary = path.with_name(path.name + ".new")
        file_number = make_new(temporary)
        try:
            os.truncate(file_number, first + num_pages * page_bytes)
            os.posix_fallocate(file_number, 0, first + reserved * page_bytes)
            os.pwrite(file_number, _HEADER.pack(MAGIC, VERSION, 0, num_pages, page_bytes, first), 0)
            os.pwrite(file_number, _FILLED.pack(reserved), _FILLED_AT)
            os.rename(temporary, path)
            return cls(path, file_number, num_pages, page_bytes, first)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(file_number)

    @classmethod
    def attach(cls, path: Path) -> "Arena":
        """Map an existing arena.

        Raises:
            ArenaError: not an arena of this release.
            OSError: no such file.
        """
        file_number = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            raw = os.pread(file_number, _HEADER.size, 0)
            if len(raw) < _HEADER.size:
                raise ArenaError(f"{path} is no arena")
            magic, version, _, num_pages, page_bytes, first = _HEADER.unpack(raw)
            if magic != MAGIC or version != VERSION:
                raise ArenaError(f"{path} is no arena of this release")
            return cls(path, file_number, num_pages, page_bytes, first)
        finally:
            os.close(file_number)

    def populate(self, first: int, num_pages: int) -> None:
        """Have memory behind these pages, before their bytes are written. Threads may do it side by
        side, of different pages.

        Raises:
            OSError: there is none left; touching them would be a SIGBUS.
        """
        start = self.pages.ctypes.data
        begin = (start + first * self.page_bytes) // _SYSTEM_PAGE_BYTES * _SYSTEM_PAGE_BYTES
        num_bytes = start + (first + num_pages) * self.page_bytes - begin
        if not _LIBC.madvise(begin, num_bytes, _POPULATE_WRITE):
            return
        error = ctypes.get_errno()
        if error == errno.EFAULT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if error != errno.EINVAL:
            raise OSError(error, os.strerror(error))
        self._populate_by_touch(first, num_pages)

    def _populate_by_touch(self, first: int, num_pages: int) -> None:
        """Where the kernel is too old for more."""
        at = self.pages.ctypes.data - self.words.ctypes.data + HEADER_BYTES
        file_number = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(file_number)
            assert self.identity == (status.st_dev, status.st_ino), "it is this arena's"
            os.posix_fallocate(
                file_number, at + first * self.page_bytes, num_pages * self.page_bytes
            )
        finally:
            os.close(file_number)
        self.pages[first : first + num_pages].reshape(-1)[::_SYSTEM_PAGE_BYTES] = 0

    def close(self) -> None:
        """Unmap. Views handed out before keep the mapping alive until they are gone."""
        del self.words, self.filled, self.pages
        with suppress(BufferError):  # a view is still held: the mapping goes with it
            self._map.close()
