"""Writes to the object store and deletes there, one order after the other: so a deletion finds all
that was written before it.
"""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from services.kvstore.core import (
    DropRuns,
    DropSession,
    LoadOutcome,
    ObjectEffect,
    Run,
    SaveOutcome,
    SaveRun,
    folder_of,
)
from services.kvstore.peers.sources import header_of
from services.kvstore.tiers.disk import BlockStore, DiskDamaged, DiskFailed
from services.kvstore.tiers.executors import Executor
from services.kvstore.tiers.objects.packed import pack_run
from services.kvstore.tiers.objects.store import NoObject, ObjectStore, StoreFailed
from services.kvstore.tiers.values import HEADER_BYTES
from shared.arena import Bytes
from shared.blocks import BlockKey
from shared.owners import OwnerKey

log = logging.getLogger(__name__)

ORDERS_MAX = 65_536  # of sessions to drop, and runs; nothing is written while so many wait
STOP_S = 5.0
UNDELETED_MAX = 65_536  # sessions that are tried again


class _Missing(Exception):
    """The disk does not have a block."""

    def __init__(self, key: BlockKey) -> None:
        self.key = key


@dataclass(frozen=True, slots=True)
class _Settle:
    report: Callable[[bool], None]


OnSaved: TypeAlias = Callable[[Run, SaveOutcome, BlockKey | None, int | None], None]
_Order: TypeAlias = ObjectEffect | _Settle


class ObjectWriter:
    """Args:
    executor: of one thread; this writer's own.
    damaged: called in the executor when the KV database cannot be used.
    report: called in the executor, or by `submit`, with what became of a run, a block of it that
        the disk does not have, if there is one, and how many bytes are there now.
    """

    def __init__(
        self,
        bucket: ObjectStore,
        disk: BlockStore,
        executor: Executor,
        damaged: Callable[[DiskDamaged], None],
        report: OnSaved,
    ) -> None:
        assert executor.num_threads == 1, "orders are done one after another"
        self._bucket = bucket
        self._disk = disk
        self._executor = executor
        self._damaged = damaged
        self._report = report
        self._orders: deque[_Order] = deque()
        self._undeleted: dict[OwnerKey, None] = {}
        self._undropped: dict[str, None] = {}
        self._is_stopping = False

    def submit(self, order: ObjectEffect) -> None:
        """Do this after everything submitted before. A session is always dropped; runs that find no
        room for their order stay where they are until the next start.
        """
        if isinstance(order, DropSession) or len(self._orders) < ORDERS_MAX:
            self._put(order)
        elif isinstance(order, SaveRun):
            self._report(order.run, SaveOutcome.FAILED, None, None)

    def settle(self, report: Callable[[bool], None]) -> None:
        """Call `report` in the executor when all that was submitted is done: whether every session
        that was to be dropped is.
        """
        self._put(_Settle(report))

    def stop(self) -> None:
        """End after what is being done, if that does not take long; what is not written is written
        after the next start.
        """
        self._is_stopping = True
        self._executor.stop(STOP_S)

    def _put(self, order: _Order) -> None:
        self._orders.append(order)
        self._executor.submit(self._do_next)

    def _do_next(self) -> None:
        if not self._is_stopping:
            self._do(self._orders.popleft())

    def _do(self, order: _Order) -> None:
        match order:
            case SaveRun(run, _):
                self._report(run, *self._save(order))
            case DropRuns(runs):
                self._drop([run.name for run in runs])
            case DropSession(owner):
                if len(self._undeleted) < UNDELETED_MAX:
                    self._undeleted[owner] = None
                self._drop_sessions()
            case _Settle(report):
                report(self._drop_sessions())

    def _drop_sessions(self) -> bool:
        """Those that were not dropped before, too; whether none is left."""
        for owner in list(self._undeleted):
            try:
                for page in self._bucket.walk(folder_of(owner)):
                    self._bucket.delete([each.name for each in page])
            except StoreFailed as error:
                log.warning("the object store does not delete", extra={"error": str(error)})
                return False
            del self._undeleted[owner]
        return True

    def _drop(self, names: list[str]) -> None:
        """Objects that were not dropped before, too; of too many the oldest are left for the next
        start.
        """
        self._undropped |= dict.fromkeys(names)
        while len(self._undropped) > UNDELETED_MAX:
            del self._undropped[next(iter(self._undropped))]
        try:
            self._bucket.delete(list(self._undropped))
        except StoreFailed as error:
            log.warning("the object store does not delete", extra={"error": str(error)})
        else:
            self._undropped.clear()

    def _save(self, order: SaveRun) -> tuple[SaveOutcome, BlockKey | None, int | None]:
        self._undropped.pop(order.run.name, None)
        try:
            data = self._read(order)
        except _Missing as missing:
            return SaveOutcome.MISSING, missing.key, None
        except (DiskFailed, OSError) as error:
            log.warning("reading the KV database failed", extra={"error": str(error)})
            if isinstance(error, DiskDamaged):
                self._damaged(error)
            return SaveOutcome.UNREAD, None, None
        body = pack_run(order.run, data) if order.run.is_packed else data.reshape(-1).data
        try:
            self._bucket.put(order.run.name, body)
        except (StoreFailed, NoObject) as error:
            log.warning("writing to the object store failed", extra={"error": str(error)})
            with suppress(StoreFailed):
                self._bucket.delete([order.run.name])
            return SaveOutcome.FAILED, None, None
        return SaveOutcome.SAVED, None, len(body)

    def _read(self, order: SaveRun) -> Bytes:
        """The object: values (`values.py`) layer by layer, each page held against its checksum.

        Raises:
            _Missing: a block is not on disk any more, or not as it was.
            DiskFailed, OSError: it cannot be read.
        """
        run = order.run
        data = np.empty((run.num_pages, HEADER_BYTES + run.page_bytes), np.uint8)
        for at, key in enumerate(order.keys):
            with self._disk.read() as reader:  # one a block: what is freed meanwhile is not reused
                stored = reader.page(key, 0)
                if stored is None or stored.record.page_bytes != run.page_bytes:
                    raise _Missing(key)
                for layer in range(run.num_layers):
                    value = data[run.place(layer, at)]
                    value[:HEADER_BYTES] = np.frombuffer(header_of(stored.record, layer), np.uint8)
                    if reader.copy(key, layer, value[HEADER_BYTES:]) is not LoadOutcome.READY:
                        raise _Missing(key)
        return data
