"""LMDB below the arena: one writer, many readers, values that describe themselves.

Not synchronous: after a power failure the newest transactions may be gone, which costs a recompute,
and a torn page is found by its checksum. Not a writable map: there a full disk is a SIGBUS, here an
error that can be answered.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from services.kvstore.core import DiskWrite, LoadOutcome
from services.kvstore.readers import Readers
from services.kvstore.values import (
    HEADER_BYTES,
    BadValue,
    ValueHeader,
    fingerprint_digest,
    read_header,
    split_value_key,
    value_key,
    write_header,
)
from shared.arena import Bytes, checksum
from shared.blocks import NO_PARENT, BlockKey
from shared.owners import NOBODY, OwnerKey

log = logging.getLogger(__name__)

DATA_NAME = "data.mdb"
ASIDE_NAME = "data.mdb.damaged"
_LOCK_NAME = "lock.mdb"
_PAGE_BYTES = 4096
_PAGE_HEADER_BYTES = 16
_STAMP_BYTES = 8
_REHEARSAL_BYTES = 16 * 1024**2
_REHEARSAL_KEY = b"rehearsal"  # shorter than a block's, so never taken for one
_FULL_ERRORS = (lmdb.MapFullError, lmdb.DiskError, lmdb.TxnFullError)
# What may be over the next time. A bare lmdb.Error is one that the system answered: EIO, say.
_PASSING_ERRORS = (
    lmdb.LockError, lmdb.MapResizedError, lmdb.MemoryError, lmdb.ReadersFullError,
    lmdb.ReadonlyError, lmdb.TlsFullError,
)  # fmt: skip


class DiskFailed(Exception):
    """A read or a write did not happen; it may the next time."""


class DiskFull(DiskFailed):
    """There is no room for this write."""


class DiskDamaged(DiskFailed):
    """The database cannot be used until it is begun anew.

    Attributes:
        life: of the `Disk` at that time; a later one is another database.
    """

    def __init__(self, why: str, life: int) -> None:
        super().__init__(why)
        self.life = life


class CorruptPage(Exception):
    """The arena's bytes are not those whose checksum was announced."""


@dataclass(frozen=True, slots=True)
class FoundBlock:
    """A complete block found by `Disk.scan`; `used_s` is wall clock, seconds."""

    key: BlockKey
    num_layers: int
    page_bytes: int
    used_s: int
    owner: OwnerKey = NOBODY
    parent: BlockKey = NO_PARENT


@dataclass(frozen=True, slots=True)
class Scan:
    """What `Disk.scan` found, and how many values it deleted."""

    blocks: list[FoundBlock]
    num_deleted: int = 0


def set_aside(folder: Path) -> None:
    """Keep a damaged database for whoever wants to look, in place of an earlier one, so that there
    is never more than one. A new one can be made then.
    """
    if (data := folder / DATA_NAME).exists():
        data.replace(folder / ASIDE_NAME)
    (folder / _LOCK_NAME).unlink(missing_ok=True)


def map_bytes_for(bytes_max: int) -> int:
    """Size limit of the file in which blocks are to occupy `bytes_max`: a quarter more."""
    return (bytes_max + bytes_max // 4) // _PAGE_BYTES * _PAGE_BYTES + 64 * 1024**2


@cache  # so that millions of blocks share a few numbers
def stored_bytes(num_layers: int, page_bytes: int) -> int:
    """What a block occupies: LMDB gives each value a run of whole pages."""
    value_bytes = _PAGE_HEADER_BYTES + HEADER_BYTES + page_bytes
    return num_layers * -(-value_bytes // _PAGE_BYTES) * _PAGE_BYTES


class Reader:
    """One snapshot."""

    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction

    def copy(self, key: BlockKey, layer: int, out: Bytes) -> LoadOutcome:
        """Copy a block's page of this layer into `out` (uint8 [page_bytes]) and check the copied
        bytes, while they are in the processor's cache, against the checksum they were stored with.
        """
        value = self._transaction.get(value_key(key, layer))
        if value is None:
            return LoadOutcome.MISSING
        try:
            header = read_header(value)
        except BadValue:
            return LoadOutcome.CORRUPT
        if (header.key, header.layer, header.page_bytes) != (key, layer, out.size):
            return LoadOutcome.CORRUPT
        np.copyto(out, np.frombuffer(value, np.uint8, offset=HEADER_BYTES))
        return LoadOutcome.READY if checksum(out.data) == header.checksum else LoadOutcome.CORRUPT

    def value(self, key: BlockKey, layer: int) -> memoryview | None:
        """A block's value of this layer, header and page as they are stored, in the file's map: not
        checked, not even touched, and not to be looked at when the snapshot has ended.
        """
        found: memoryview | None = self._transaction.get(value_key(key, layer))
        return found


class Disk:
    """The LMDB environment. Some threads read, one writes, which may begin it anew.

    LMDB believes what is in its file, and some damage ends the process that touches it: `start`
    has a process of its own look first.

    Attributes:
        life: counts the databases that this was.

    Raises, when made:
        lmdb.Error: the file is no whole database.
        OSError: the folder cannot be made or written to.
    """

    def __init__(self, path: Path, bytes_max: int) -> None:
        self._path = path
        self._map_bytes = map_bytes_for(bytes_max)
        self._readers = Readers()
        self._is_damaged = False
        self._env: Any = None
        self.life = 1
        self._open()

    def _open(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        env = lmdb.open(
            str(self._path), map_size=self._map_bytes, max_dbs=4, sync=False, metasync=False,
            writemap=False,
        )  # fmt: skip
        try:
            pages = env.info()["last_pgno"] + 1
            if (self._path / DATA_NAME).stat().st_size < pages * env.stat()["psize"]:
                raise lmdb.CorruptedError("cut short: reading beyond its end would be a SIGBUS")
            env.reader_check()
            self._values = env.open_db(b"values")
            self._uses = env.open_db(b"uses")
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
        self._env.close()
        self._env = None

    def begin_anew(self) -> None:
        """Set the database aside and make an empty one; the writer's thread only. If that cannot
        be, every read and write fails from now on.
        """
        with self._readers.replacing():
            self.life += 1
            self._is_damaged = False
            env, self._env = self._env, None
            if env is not None:
                env.close()
            try:
                set_aside(self._path)
                self._open()
            except (OSError, lmdb.Error) as error:
                log.error("no KV database: KV stays in the arena", extra={"error": str(error)})

    def sync(self) -> None:
        """Make everything written so far durable.

        Raises:
            DiskFailed: it may not be.
        """
        with self._judged() as env:
            env.sync(True)

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """A snapshot to read from. Keep it short: pages freed meanwhile cannot be reused.

        Raises:
            DiskFailed: at the beginning or while reading.
        """
        with (
            self._readers.reading(),
            self._judged() as env,
            env.begin(db=self._values, buffers=True) as transaction,
        ):
            yield Reader(transaction)

    @contextmanager
    def write(self, now_s: int) -> Iterator["Writer"]:
        """A transaction, committed at the end unless the body raises.

        Raises:
            DiskFailed: nothing of the transaction is stored.
        """
        with self._judged() as env, env.begin(write=True) as transaction:
            yield Writer(transaction, self._values, self._uses, now_s)

    @contextmanager
    def _judged(self) -> Iterator[Any]:
        """The environment, with what LMDB raises in the body sorted by what is to be done."""
        if self._is_damaged:
            raise DiskDamaged("found damaged before", self.life)
        if self._env is None:
            raise DiskFailed("there is no database")
        try:
            yield self._env
        except _FULL_ERRORS as error:
            raise DiskFull(str(error)) from error
        except lmdb.Error as error:
            if isinstance(error, _PASSING_ERRORS) or type(error) is lmdb.Error:
                raise DiskFailed(str(error)) from error
            self._is_damaged = True
            raise DiskDamaged(str(error), self.life) from error

    def scan(self) -> Scan:
        """Every complete block. Reads headers only; what is incomplete or unreadable is deleted.

        Raises:
            lmdb.Error: the database is damaged.
        """
        found: list[FoundBlock] = []
        wrong: list[bytes] = []
        with self._env.begin(buffers=True) as transaction:
            for key, entries in _by_block(_walk(transaction, self._values), wrong):
                used = transaction.get(bytes(key), db=self._uses)
                first = entries[0][1]
                if [header.layer for _, header in entries] != list(range(first.num_layers)):
                    wrong += [raw for raw, _ in entries]
                    continue
                is_stamp = used is not None and len(used) == _STAMP_BYTES
                used_s = int.from_bytes(bytes(used), "little") if is_stamp else first.created_s
                found.append(
                    FoundBlock(
                        key, first.num_layers, first.page_bytes, used_s, first.owner, first.parent
                    )
                )
            for _ in _walk(transaction, self._uses):
                pass
        if wrong:
            with self._env.begin(write=True, db=self._values) as transaction:
                for raw in wrong:
                    transaction.delete(raw)
        return Scan(found, len(wrong))

    def rehearse(self) -> None:
        """Do to the list of free pages what later writes will: damage there shows in no read.

        Raises:
            lmdb.Error: the database is damaged.
        """
        try:
            with self._env.begin(write=True) as transaction:  # looks for a long run of free pages
                transaction.put(_REHEARSAL_KEY, bytes(_REHEARSAL_BYTES), db=self._values)
                transaction.abort()
            with self._env.begin(write=True) as transaction:
                transaction.put(_REHEARSAL_KEY, b"", db=self._uses)
        except _FULL_ERRORS as error:  # not damaged: blocks will make room
            log.info("the KV database is full", extra={"error": str(error)})


class Writer:
    """One write transaction."""

    def __init__(self, transaction: Any, values: Any, uses: Any, now_s: int) -> None:
        self._transaction = transaction
        self._values = values
        self._uses = uses
        self._now_s = now_s

    def put(self, write: DiskWrite, pages: Bytes) -> None:
        """Store a block.

        Args:
            pages: uint8 [num_pages, page_bytes], the arena that `write.pages` point into.

        Raises:
            CorruptPage: a page is not what its checksum says; abort the transaction.
            lmdb.Error: see `Disk.write`.
        """
        buffer = bytearray(HEADER_BYTES + write.page_bytes)
        payload = np.frombuffer(buffer, np.uint8, offset=HEADER_BYTES)
        fingerprint = fingerprint_digest(write.fingerprint)
        num_layers = len(write.pages)
        for layer, (page, announced) in enumerate(zip(write.pages, write.checksums, strict=True)):
            np.copyto(payload, pages[page])
            if checksum(payload.data) != announced:
                raise CorruptPage(f"layer {layer} of block {write.key.hex()}")
            header = ValueHeader(
                write.key, write.parent, fingerprint, layer, num_layers, write.page_bytes,
                self._now_s, write.tokens, announced, write.owner,
            )  # fmt: skip
            write_header(header, buffer)
            self._transaction.put(value_key(write.key, layer), buffer, db=self._values)

    def delete(self, key: BlockKey, num_layers: int) -> None:
        """Remove a block, as far as it is there."""
        for layer in range(num_layers):
            self._transaction.delete(value_key(key, layer), db=self._values)
        self._transaction.delete(key, db=self._uses)

    def touch(self, keys: Sequence[BlockKey]) -> None:
        """Note that these blocks were used now."""
        stamp = self._now_s.to_bytes(_STAMP_BYTES, "little")
        for key in keys:
            self._transaction.put(key, stamp, db=self._uses)


def _walk(transaction: Any, database: Any) -> Iterator[tuple[bytes, Any]]:
    """Every key and value, each key also looked up.

    Raises:
        lmdb.Error: the walk is not in order, or meets what a lookup does not find.
    """
    num_left = transaction.stat(database)["entries"]
    before = b""
    for raw_view, value in transaction.cursor(db=database):
        raw = bytes(raw_view)
        if raw <= before or transaction.get(raw, db=database) is None:
            raise lmdb.CorruptedError("its keys are not where they belong")
        yield raw, value
        before = raw
        num_left -= 1
    if num_left:
        raise lmdb.CorruptedError("it holds more or fewer keys than it says")


def _by_block(
    walk: Iterator[tuple[bytes, Any]], wrong: list[bytes]
) -> Iterator[tuple[BlockKey, list[tuple[bytes, ValueHeader]]]]:
    """Readable values grouped by block; the keys of others go to `wrong`."""
    current: BlockKey | None = None
    entries: list[tuple[bytes, ValueHeader]] = []
    for raw, value in walk:
        try:
            key, layer = split_value_key(raw)
            header = read_header(value)
            if (header.key, header.layer) != (key, layer):
                raise BadValue("a header of another page")
        except BadValue:
            wrong.append(raw)
            continue
        if key != current:
            if current is not None:
                yield current, entries
            current, entries = key, []
        entries.append((raw, header))
    if current is not None:
        yield current, entries
