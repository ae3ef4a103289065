"""KV below the arena: an index of blocks in LMDB, and their pages in slabs beside it.

LMDB is not synchronous: after a power failure the newest transactions may be gone, which costs a
recompute; so does a page that is not the one the index speaks of, which is found by its checksum.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import lmdb

from services.kvstore.tiers.disk.errors import DiskDamaged, DiskFailed, DiskFull
from services.kvstore.tiers.disk.index import DATA_NAME, FULL_ERRORS, LOCK_NAME, Index, room_bytes
from services.kvstore.tiers.disk.readers import Readers
from services.kvstore.tiers.disk.reading import Reader
from services.kvstore.tiers.disk.records import record_bytes
from services.kvstore.tiers.disk.scan import Scan, Slots
from services.kvstore.tiers.disk.slab import is_full, slot_bytes
from services.kvstore.tiers.disk.slabs import Slabs, remove_slabs
from services.kvstore.tiers.disk.writing import SlotChanges, Writer
from shared.blocks import BLOCK_TOKENS

log = logging.getLogger(__name__)

ASIDE_NAME = "data.mdb.damaged"
# What may be over the next time. A bare lmdb.Error is one that the system answered: EIO, say.
_PASSING_ERRORS = (
    lmdb.LockError, lmdb.MapResizedError, lmdb.MemoryError, lmdb.ReadersFullError,
    lmdb.ReadonlyError, lmdb.TlsFullError,
)  # fmt: skip


def set_aside(folder: Path) -> None:
    """Keep a damaged index for examination, in place of an earlier one, so that there is
    never more than one; what it led to is removed. A new database can be made then.
    """
    if (data := folder / DATA_NAME).exists():
        data.replace(folder / ASIDE_NAME)
    (folder / LOCK_NAME).unlink(missing_ok=True)
    remove_slabs(folder)


def throw_away(folder: Path) -> None:
    """Remove a database that no release of ours will read again."""
    (folder / DATA_NAME).unlink(missing_ok=True)
    (folder / LOCK_NAME).unlink(missing_ok=True)
    remove_slabs(folder)


@cache  # so that millions of blocks share a few numbers
def stored_bytes(num_layers: int, page_bytes: int) -> int:
    """What a block occupies: its slot, and its record in a tree whose pages are half full."""
    return slot_bytes(num_layers, page_bytes) + 2 * record_bytes(num_layers, BLOCK_TOKENS)


class Disk:
    """The index and its slabs. Some threads read, one writes, which may reset it.

    Args:
        slots: that hold a block, if that was read from the index already.

    Attributes:
        life: counts the databases that this was.

    Raises, when made:
        lmdb.VersionMismatchError: it is another release's.
        lmdb.Error: the index is no whole database.
        OSError: the folder cannot be made or written to.
    """

    def __init__(self, path: Path, bytes_max: int, slots: Slots | None = None) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._readers = Readers()
        self._is_damaged = False
        self._index: Index | None = None
        self.life = 1
        self._open(slots)

    def _open(self, slots: Slots | None = None) -> None:
        index = Index(self._path, self._bytes_max)
        try:
            used = index.slots() if slots is None else slots
            self._slabs = Slabs(self._path, room_bytes(self._bytes_max), self._readers, used)
        except BaseException:
            index.close()
            raise
        self._index = index

    def close(self) -> None:
        """Make everything durable and unmap. No reader may be open."""
        if self._index is None:
            return
        try:
            self.sync()
        except DiskFailed as error:
            log.warning("syncing the KV database failed", extra={"error": str(error)})
        self._close()

    def reset(self) -> None:
        """Set the database aside and make an empty one; the writer's thread only. If that cannot
        be, every read and write fails from now on.
        """
        with self._readers.replacing():
            self.life += 1
            self._is_damaged = False
            self._close()
            try:
                set_aside(self._path)
                self._open()
            except (OSError, lmdb.Error) as error:
                log.error("no KV database: KV stays in the arena", extra={"error": str(error)})

    def sync(self) -> None:
        """Make everything written so far durable, pages before what leads to them.

        Raises:
            DiskFailed: it may not be.
        """
        with self._judged() as index:
            self._slabs.sync()
            index.env.sync(True)

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """A snapshot to read from. Keep it short: slots freed meanwhile cannot be reused.

        Raises:
            DiskFailed: at the beginning or while reading.
        """
        with (
            self._readers.reading(),
            self._judged() as index,
            index.env.begin(db=index.blocks, buffers=True) as transaction,
        ):
            yield Reader(transaction, self._slabs)

    @contextmanager
    def write(self, now_s: int) -> Iterator[Writer]:
        """A transaction, committed at the end unless the body raises.

        Raises:
            DiskFailed: nothing of the transaction is stored.
        """
        changes = SlotChanges()
        with self._judged() as index:
            try:
                with index.env.begin(write=True, buffers=True) as transaction:
                    yield Writer(transaction, index.blocks, index.uses, self._slabs, changes, now_s)
            except BaseException:
                self._slabs.give_back(changes.taken)
                raise
            self._slabs.free(changes.freed)

    @contextmanager
    def _judged(self) -> Iterator[Index]:
        """The index, with what LMDB and the system raise in the body sorted by what is to be
        done.
        """
        if self._is_damaged:
            raise DiskDamaged("found damaged before", self.life)
        if self._index is None:
            raise DiskFailed("there is no database")
        try:
            yield self._index
        except FULL_ERRORS as error:
            raise DiskFull(str(error)) from error
        except OSError as error:
            raise (DiskFull if is_full(error) else DiskFailed)(str(error)) from error
        except lmdb.Error as error:
            if isinstance(error, _PASSING_ERRORS) or type(error) is lmdb.Error:
                raise DiskFailed(str(error)) from error
            self._is_damaged = True
            raise DiskDamaged(str(error), self.life) from error

    def scan(self) -> Scan:
        """Every block. Reads the index only; records that lead to no block are deleted.

        Raises:
            lmdb.Error: the database is damaged.
        """
        assert self._index is not None, "it is open"
        return self._index.scan(self._slabs.num_whole)

    def _close(self) -> None:
        index, self._index = self._index, None
        if index is not None:
            index.close()
            self._slabs.close()
