"""KV below the arena: an index of blocks in LMDB, and their pages in slabs beside it.

LMDB is not synchronous: after a power failure the newest transactions may be gone, which costs a
recompute; so does a page that is not the one the index speaks of, which is found by its checksum.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import lmdb

from services.kvstore.disk.errors import DiskDamaged, DiskFailed, DiskFull
from services.kvstore.disk.reading import Reader
from services.kvstore.disk.records import FORMAT, record_bytes
from services.kvstore.disk.scan import Scan, find_blocks, find_slots
from services.kvstore.disk.slab import is_full, slot_bytes
from services.kvstore.disk.slabs import Slabs, remove_slabs
from services.kvstore.disk.writing import SlotChanges, Writer
from services.kvstore.readers import Readers
from shared.blocks import BLOCK_TOKENS

log = logging.getLogger(__name__)

DATA_NAME = "data.mdb"
ASIDE_NAME = "data.mdb.damaged"
_LOCK_NAME = "lock.mdb"
_PAGE_BYTES = 4096
_SPARE_BYTES = 64 * 1024**2
_FORMAT_KEY = b"format"
_REHEARSAL_BYTES = 16 * 1024**2
_REHEARSAL_KEY = b"rehearsal"  # shorter than a block's, so never taken for one
_FULL_ERRORS = (lmdb.MapFullError, lmdb.DiskError, lmdb.TxnFullError)
# What may be over the next time. A bare lmdb.Error is one that the system answered: EIO, say.
_PASSING_ERRORS = (
    lmdb.LockError, lmdb.MapResizedError, lmdb.MemoryError, lmdb.ReadersFullError,
    lmdb.ReadonlyError, lmdb.TlsFullError,
)  # fmt: skip


def set_aside(folder: Path) -> None:
    """Keep a damaged index for whoever wants to look, in place of an earlier one, so that there is
    never more than one; what it led to is removed. A new database can be made then.
    """
    if (data := folder / DATA_NAME).exists():
        data.replace(folder / ASIDE_NAME)
    (folder / _LOCK_NAME).unlink(missing_ok=True)
    remove_slabs(folder)


def throw_away(folder: Path) -> None:
    """Remove a database that no release of ours will read again."""
    (folder / DATA_NAME).unlink(missing_ok=True)
    (folder / _LOCK_NAME).unlink(missing_ok=True)
    remove_slabs(folder)


@cache  # so that millions of blocks share a few numbers
def stored_bytes(num_layers: int, page_bytes: int) -> int:
    """What a block occupies: its slot, and its record in a tree whose pages are half full."""
    return slot_bytes(num_layers, page_bytes) + 2 * record_bytes(num_layers, BLOCK_TOKENS)


class Disk:
    """The index and its slabs. Some threads read, one writes, which may begin it anew.

    LMDB believes what is in its file, and some damage ends the process that touches it: `start`
    has a process of its own look first.

    Attributes:
        life: counts the databases that this was.

    Raises, when made:
        lmdb.VersionMismatchError: it is another release's.
        lmdb.Error: the index is no whole database.
        OSError: the folder cannot be made or written to.
    """

    def __init__(self, path: Path, bytes_max: int) -> None:
        self._path = path
        # A quarter more: blocks leave after others came, and slots after their readers ended.
        self._bytes_max = bytes_max + bytes_max // 4 + _SPARE_BYTES
        self._readers = Readers()
        self._is_damaged = False
        self._env: Any = None
        self.life = 1
        self._open()

    def _open(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        env = lmdb.open(
            str(self._path), map_size=self._bytes_max // _PAGE_BYTES * _PAGE_BYTES, max_dbs=4,
            sync=False, metasync=False, writemap=False,
        )  # fmt: skip
        try:
            pages = env.info()["last_pgno"] + 1
            if (self._path / DATA_NAME).stat().st_size < pages * env.stat()["psize"]:
                raise lmdb.CorruptedError("cut short: reading beyond its end would be a SIGBUS")
            env.reader_check()
            _check_format(env)
            self._blocks = env.open_db(b"blocks")
            self._uses = env.open_db(b"uses")
            with env.begin(buffers=True) as transaction:
                used = find_slots(transaction, self._blocks)
            self._slabs = Slabs(self._path, self._bytes_max, self._readers, used)
        except BaseException:
            env.close()
            raise
        self._env = env

    def close(self) -> None:
        """Make everything durable and unmap. No reader may be open."""
        if self._env is None:
            return
        try:
            self.sync()
        except DiskFailed as error:
            log.warning("syncing the KV database failed", extra={"error": str(error)})
        self._close()

    def begin_anew(self) -> None:
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
        with self._judged() as env:
            self._slabs.sync()
            env.sync(True)

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """A snapshot to read from. Keep it short: slots freed meanwhile cannot be reused.

        Raises:
            DiskFailed: at the beginning or while reading.
        """
        with (
            self._readers.reading(),
            self._judged() as env,
            env.begin(db=self._blocks, buffers=True) as transaction,
        ):
            yield Reader(transaction, self._slabs)

    @contextmanager
    def write(self, now_s: int) -> Iterator[Writer]:
        """A transaction, committed at the end unless the body raises.

        Raises:
            DiskFailed: nothing of the transaction is stored.
        """
        changes = SlotChanges()
        with self._judged() as env:
            try:
                with env.begin(write=True, buffers=True) as transaction:
                    yield Writer(transaction, self._blocks, self._uses, self._slabs, changes, now_s)
            except BaseException:
                self._slabs.give_back(changes.taken)
                raise
            self._slabs.free(changes.freed)

    @contextmanager
    def _judged(self) -> Iterator[Any]:
        """The environment, with what LMDB and the system raise in the body sorted by what is to be
        done.
        """
        if self._is_damaged:
            raise DiskDamaged("found damaged before", self.life)
        if self._env is None:
            raise DiskFailed("there is no database")
        try:
            yield self._env
        except _FULL_ERRORS as error:
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
        with self._env.begin(buffers=True) as transaction:
            found, wrong = find_blocks(transaction, self._blocks, self._uses, self._slabs)
        if wrong:
            with self._env.begin(write=True, db=self._blocks) as transaction:
                for raw_key in wrong:
                    transaction.delete(raw_key)
        return Scan(found, len(wrong))

    def rehearse(self) -> None:
        """Do to the list of free pages what later writes will: damage there shows in no read.

        Raises:
            lmdb.Error: the database is damaged.
        """
        try:
            with self._env.begin(write=True) as transaction:  # looks for a long run of free pages
                transaction.put(_REHEARSAL_KEY, bytes(_REHEARSAL_BYTES), db=self._blocks)
                transaction.abort()
            with self._env.begin(write=True) as transaction:
                transaction.put(_REHEARSAL_KEY, b"", db=self._uses)
        except _FULL_ERRORS as error:  # not damaged: blocks will make room
            log.info("the KV database is full", extra={"error": str(error)})

    def _close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()
            self._slabs.close()


def _check_format(env: Any) -> None:
    """Leave word of the format in a new database.

    Raises:
        lmdb.VersionMismatchError: this one is of another.
    """
    with env.begin(write=True) as transaction:
        if not transaction.stat()["entries"]:
            transaction.put(_FORMAT_KEY, FORMAT)
        elif transaction.get(_FORMAT_KEY) != FORMAT:
            raise lmdb.VersionMismatchError("it is of another release")
