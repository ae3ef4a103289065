"""LMDB below the arena: one writer, many readers, values that describe themselves.

Not synchronous: after a power failure the newest transactions may be gone, which costs a recompute,
and a torn page is found by its checksum. Not a writable map: there a full disk is a SIGBUS, here an
error that can be answered.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from services.kvstore.core import BlockWrite, LoadOutcome, PageLoad
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
from shared.blocks import BlockKey

log = logging.getLogger(__name__)

_PAGE_BYTES = 4096
_PAGE_HEADER_BYTES = 16


class CorruptPage(Exception):
    """The arena's bytes are not those whose checksum was announced."""


@dataclass(frozen=True, slots=True)
class FoundBlock:
    """A complete block found by `Disk.scan`; `used_s` is wall clock, seconds."""

    key: BlockKey
    num_layers: int
    page_bytes: int
    used_s: int


def stored_bytes(num_layers: int, page_bytes: int) -> int:
    """What a block occupies: LMDB gives each value a run of whole pages."""
    value_bytes = _PAGE_HEADER_BYTES + HEADER_BYTES + page_bytes
    return num_layers * -(-value_bytes // _PAGE_BYTES) * _PAGE_BYTES


class Reader:
    """One snapshot."""

    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction

    def copy(self, load: PageLoad, out: Bytes) -> LoadOutcome:
        """Copy a page into `out` (uint8 [page_bytes]) and check the copied bytes, while they are in
        the processor's cache, against the checksum they were stored with.
        """
        value = self._transaction.get(value_key(load.key, load.layer))
        if value is None:
            return LoadOutcome.MISSING
        try:
            header = read_header(value)
        except BadValue:
            return LoadOutcome.CORRUPT
        if (header.key, header.layer, header.page_bytes) != (load.key, load.layer, out.size):
            return LoadOutcome.CORRUPT
        np.copyto(out, np.frombuffer(value, np.uint8, offset=HEADER_BYTES))
        return LoadOutcome.READY if checksum(out.data) == header.checksum else LoadOutcome.CORRUPT


class Disk:
    """The LMDB environment. Make with `open`; all writing from one thread."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._values = env.open_db(b"values")
        self._uses = env.open_db(b"uses")
        self._buffer = bytearray()

    @classmethod
    def open(cls, path: Path, bytes_max: int) -> "Disk":
        """Open or make the environment in folder `path`. A damaged one is thrown away: everything
        in it can be computed again.

        Args:
            bytes_max: what the blocks will occupy; the file may grow a quarter beyond it.

        Raises:
            OSError: the folder cannot be made or written to.
        """
        path.mkdir(parents=True, exist_ok=True)
        map_bytes = (bytes_max + bytes_max // 4) // _PAGE_BYTES * _PAGE_BYTES + 64 * 1024**2
        try:
            return cls._open_whole(path, map_bytes)
        except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError) as error:
            log.error("the KV database is damaged and begins anew", extra={"error": str(error)})
            for name in ("data.mdb", "lock.mdb"):
                (path / name).unlink(missing_ok=True)
            return cls._open_whole(path, map_bytes)

    @classmethod
    def _open_whole(cls, path: Path, map_bytes: int) -> "Disk":
        env = lmdb.open(
            str(path), map_size=map_bytes, max_dbs=4, sync=False, metasync=False, writemap=False
        )
        try:
            pages = env.info()["last_pgno"] + 1
            if (path / "data.mdb").stat().st_size < pages * env.stat()["psize"]:
                raise lmdb.CorruptedError("cut short: reading beyond its end would be a SIGBUS")
            env.reader_check()
            return cls(env)
        except BaseException:
            env.close()
            raise

    def close(self) -> None:
        """Make everything durable and unmap. No reader may be open."""
        self._env.sync(True)
        self._env.close()

    def sync(self) -> None:
        """Make everything written so far durable."""
        self._env.sync(True)

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """A snapshot to read from. Keep it short: pages freed meanwhile cannot be reused."""
        with self._env.begin(db=self._values, buffers=True) as transaction:
            yield Reader(transaction)

    @contextmanager
    def write(self, now_s: int) -> Iterator["Writer"]:
        """A transaction, committed at the end unless the body raises.

        Raises:
            lmdb.Error: the disk is full or broken; nothing of the transaction is stored.
        """
        with self._env.begin(write=True) as transaction:
            yield Writer(transaction, self._values, self._uses, now_s)

    def scan(self, now_s: int) -> list[FoundBlock]:
        """Every complete block. Reads headers only; what is incomplete or unreadable is deleted."""
        found: list[FoundBlock] = []
        wrong: list[bytes] = []
        with self._env.begin(buffers=True) as transaction:
            for key, entries in _by_block(transaction.cursor(db=self._values), wrong):
                used = transaction.get(bytes(key), db=self._uses)
                first = entries[0][1]
                if [header.layer for _, header in entries] != list(range(first.num_layers)):
                    wrong += [raw for raw, _ in entries]
                    continue
                used_s = int.from_bytes(bytes(used), "little") if used else first.created_s
                found.append(FoundBlock(key, first.num_layers, first.page_bytes, used_s))
        if wrong:
            log.warning("incomplete blocks deleted", extra={"num_pages": len(wrong)})
            with self._env.begin(write=True, db=self._values) as transaction:
                for raw in wrong:
                    transaction.delete(raw)
        return found


class Writer:
    """One write transaction."""

    def __init__(self, transaction: Any, values: Any, uses: Any, now_s: int) -> None:
        self._transaction = transaction
        self._values = values
        self._uses = uses
        self._now_s = now_s

    def put(self, write: BlockWrite, pages: Bytes) -> None:
        """Store a block.

        Args:
            pages: uint8 [num_pages, page_bytes], the arena that `write.pages` point into.

        Raises:
            CorruptPage: a page is not what its checksum says; abort the transaction.
            lmdb.Error: the disk is full or broken.
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
                self._now_s, write.tokens, announced,
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
        stamp = self._now_s.to_bytes(8, "little")
        for key in keys:
            self._transaction.put(key, stamp, db=self._uses)


def _by_block(
    cursor: Any, wrong: list[bytes]
) -> Iterator[tuple[BlockKey, list[tuple[bytes, ValueHeader]]]]:
    """Readable values grouped by block; the keys of others go to `wrong`."""
    current: BlockKey | None = None
    entries: list[tuple[bytes, ValueHeader]] = []
    for raw_view, value in cursor:
        raw = bytes(raw_view)
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
