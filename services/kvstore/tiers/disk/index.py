"""The index of blocks: an LMDB environment with two databases, records and last uses by key."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lmdb

from services.kvstore.tiers.disk.records import FORMAT
from services.kvstore.tiers.disk.scan import Scan, Slots, find_blocks, find_slots
from services.kvstore.tiers.disk.slabs import Shape

log = logging.getLogger(__name__)

DATA_NAME = "data.mdb"
LOCK_NAME = "lock.mdb"
FULL_ERRORS = (lmdb.MapFullError, lmdb.DiskError, lmdb.TxnFullError)
_PAGE_BYTES = 4096
_SPARE_BYTES = 64 * 1024**2
_FORMAT_KEY = b"format"
_REHEARSAL_BYTES = 16 * 1024**2
_REHEARSAL_KEY = b"rehearsal"  # shorter than a block's, so never taken for one


def room_bytes(bytes_max: int) -> int:
    """What the index may occupy, and all slots, where blocks are to occupy so much: a quarter more,
    for blocks leave after others came, and slots after their readers ended.
    """
    return bytes_max + bytes_max // 4 + _SPARE_BYTES


class Index:
    """LMDB believes what is in its file, and some damage ends the process that touches it: `start`
    has a process of its own look first.

    Attributes:
        env: the environment.
        blocks, uses: its databases.

    Raises, when made:
        lmdb.VersionMismatchError: it is another release's.
        lmdb.Error: it is no whole database.
        OSError: the folder cannot be made or written to.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        map_bytes = room_bytes(bytes_max) // _PAGE_BYTES * _PAGE_BYTES
        self.env: Any = lmdb.open(
            str(folder), map_size=map_bytes, max_dbs=4, sync=False, metasync=False, writemap=False
        )
        try:
            pages = self.env.info()["last_pgno"] + 1
            if (folder / DATA_NAME).stat().st_size < pages * self.env.stat()["psize"]:
                raise lmdb.CorruptedError("cut short: reading beyond its end would be a SIGBUS")
            self.env.reader_check()
            _check_format(self.env)
            self.blocks: Any = self.env.open_db(b"blocks")
            self.uses: Any = self.env.open_db(b"uses")
        except BaseException:
            self.env.close()
            raise

    def close(self) -> None:
        """Unmap. No transaction may be open."""
        self.env.close()

    def slots(self) -> Slots:
        """Those that hold a block."""
        with self.env.begin() as transaction:
            return find_slots(transaction, self.blocks)

    def scan(self, num_whole: Mapping[Shape, int]) -> Scan:
        """Every block. Records that lead to no block are deleted.

        Args:
            num_whole: slots for which each slab is long enough.

        Raises:
            lmdb.Error: the database is damaged.
        """
        with self.env.begin() as transaction:
            found, wrong = find_blocks(transaction, self.blocks, self.uses, num_whole)
        if wrong:
            with self.env.begin(write=True, db=self.blocks) as transaction:
                for raw_key in wrong:
                    transaction.delete(raw_key)
        return Scan(found, len(wrong))

    def rehearse(self) -> None:
        """Do to the list of free pages what later writes will: damage there shows in no read.

        Raises:
            lmdb.Error: the database is damaged.
        """
        try:
            with self.env.begin(write=True) as transaction:  # looks for a long run of free pages
                transaction.put(_REHEARSAL_KEY, bytes(_REHEARSAL_BYTES), db=self.blocks)
                transaction.abort()
            with self.env.begin(write=True) as transaction:
                transaction.put(_REHEARSAL_KEY, b"", db=self.uses)
        except FULL_ERRORS as error:  # not damaged: blocks will make room
            log.info("the KV database is full", extra={"error": str(error)})


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
