"""The thread beside the event loop that writes from the arena to the disk.

It reports to the event loop in batches. What finds no room in its queue is reported as failed at
once: the event loop waits for no disk. A block that is not written stays in the arena, a mark of
use is not made. Deletions alone are always taken: each is of a block that was written, so there are
never more than the disk has blocks and the queue has writes.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from services.kvstore.core import (
    DeleteBlocks,
    DiskEffect,
    DiskWrite,
    ResetDisk,
    TouchBlocks,
    WriteBlocks,
    WriteOutcome,
)
from services.kvstore.tiers.disk import (
    CorruptPage,
    Disk,
    DiskDamaged,
    DiskFailed,
    DiskFull,
    Writer,
    stored_bytes,
)
from shared.arena import Arena
from shared.blocks import BlockKey
from shared.clock import Clock

log = logging.getLogger(__name__)

WriteResults: TypeAlias = list[tuple[int, WriteOutcome, int]]
OnDamage: TypeAlias = Callable[[DiskDamaged], None]

WRITE_BATCH_BYTES = 64 * 1024 * 1024
SYNC_INTERVAL_S = 1.0
STEPS_MAX = 65_536


@dataclass(frozen=True, slots=True)
class _Delete:
    key: BlockKey


@dataclass(frozen=True, slots=True)
class _Touch:
    keys: list[BlockKey]
    expiry_s: int


@dataclass(frozen=True, slots=True)
class _Settle:
    report: Callable[[bool], None]


_Step: TypeAlias = DiskWrite | _Delete | _Touch | _Settle | ResetDisk


class WriterThread:
    """The single writer of the disk: takes what is waiting as one transaction, in order.

    Args:
        arenas: by page size in bytes.
        report: called with the outcome of every block: in this thread, or by `submit`.
        steps_max: blocks and marks of use that may wait.
        damaged: called in this thread, before the outcomes, when the database cannot be used.
        fail: called in this thread with what ended it.
    """

    def __init__(
        self,
        disk: Disk,
        arenas: Mapping[int, Arena],
        clock: Clock,
        report: Callable[[WriteResults], None],
        damaged: OnDamage,
        fail: Callable[[BaseException], None],
        steps_max: int = STEPS_MAX,
    ) -> None:
        self._disk = disk
        self._arenas = arenas
        self._steps_max = steps_max
        self._clock = clock
        self._report = report
        self._damaged = damaged
        self._fail = fail
        self._steps: queue.SimpleQueue[_Step | None] = queue.SimpleQueue()
        self._undeleted: dict[BlockKey, _Delete] = {}
        self._thread = threading.Thread(target=self._run, name="kv-writer", daemon=True)
        self._thread.start()

    def submit(self, order: DiskEffect) -> None:
        """Do this after everything submitted before; see the module for what finds no room."""
        match order:
            case WriteBlocks(writes):
                room = max(self._steps_max - self._steps.qsize(), 0)
                for write in writes[:room]:
                    self._steps.put(write)
                if lost := writes[room:]:
                    self._report([(write.block_id, WriteOutcome.FAILED, 0) for write in lost])
            case DeleteBlocks(blocks):
                for key, _ in blocks:
                    self._steps.put(_Delete(key))
            case TouchBlocks(keys, expiry_s):
                if self._steps.qsize() < self._steps_max:
                    self._steps.put(_Touch(keys, expiry_s))
            case ResetDisk():
                self._steps.put(order)

    def settle(self, report: Callable[[bool], None]) -> None:
        """Call `report` in this thread once all that was submitted is done and durable: whether
        everything that was to be deleted is.
        """
        self._steps.put(_Settle(report))

    def stop(self) -> None:
        """Finish what was submitted, then end."""
        self._steps.put(None)
        self._thread.join()

    def _run(self) -> None:
        is_dirty = False
        synced_at = time.monotonic()
        try:
            while True:
                steps, is_last = self._take(SYNC_INTERVAL_S if is_dirty else None)
                if steps:
                    if results := self._store(steps):
                        self._report(results)
                    self._answer(steps)
                    is_dirty = True
                if is_last:
                    return
                if is_dirty and time.monotonic() - synced_at >= SYNC_INTERVAL_S:
                    self._sync()
                    is_dirty = False
                    synced_at = time.monotonic()
        except Exception as error:
            self._fail(error)

    def _take(self, timeout_s: float | None) -> tuple[list[_Step], bool]:
        """What waits, as one batch, and whether it is the last."""
        steps: list[_Step] = []
        num_bytes = 0
        try:
            step = self._steps.get(timeout=timeout_s)
            while step is not None:
                steps.append(step)
                if isinstance(step, DiskWrite):
                    num_bytes += stored_bytes(len(step.pages), step.page_bytes)
                if num_bytes >= WRITE_BATCH_BYTES:
                    return steps, False
                step = self._steps.get_nowait()
        except queue.Empty:
            return steps, False
        return steps, True

    def _begin_anew(self, steps: Sequence[_Step]) -> tuple[WriteResults, Sequence[_Step]]:
        """If the disk is to begin anew: what is lost of the steps before, and those after."""
        if ResetDisk() not in steps:
            return [], steps
        at = len(steps) - 1 - list(reversed(steps)).index(ResetDisk())
        self._undeleted.clear()
        self._disk.begin_anew()
        lost = [step for step in steps[:at] if isinstance(step, DiskWrite)]
        return [(step.block_id, WriteOutcome.FAILED, 0) for step in lost], steps[at + 1 :]

    def _store(self, steps: Sequence[_Step]) -> WriteResults:
        results, steps = self._begin_anew(steps)
        again = [*self._undeleted.values(), *steps]
        if self._transact(again) is WriteOutcome.STORED:
            self._undeleted.clear()
            return results + [_stored(step) for step in steps if isinstance(step, DiskWrite)]
        for step in again:  # one by one, so that only what fails is lost
            outcome = self._transact([step])
            if isinstance(step, DiskWrite):
                results.append(
                    _stored(step) if outcome is WriteOutcome.STORED else (step.block_id, outcome, 0)
                )
            if isinstance(step, _Delete) and outcome is not WriteOutcome.STORED:
                self._undeleted[step.key] = step
            elif isinstance(step, _Delete | DiskWrite):
                self._undeleted.pop(step.key, None)
        return results

    def _transact(self, steps: Sequence[_Step]) -> WriteOutcome:
        try:
            with self._disk.write(self._clock.wall_ns() // 1_000_000_000) as writer:
                for step in steps:
                    self._apply(writer, step)
        except CorruptPage as error:
            log.error("a committed page is not what was announced", extra={"error": str(error)})
            return WriteOutcome.CORRUPT
        except DiskFailed as error:
            log.warning("writing the KV database failed", extra={"error": str(error)})
            if isinstance(error, DiskDamaged):
                self._damaged(error)
            return WriteOutcome.FULL if isinstance(error, DiskFull) else WriteOutcome.FAILED
        return WriteOutcome.STORED

    def _apply(self, writer: Writer, step: _Step) -> None:
        match step:
            case DiskWrite():
                writer.put(step, self._arenas[step.page_bytes].pages)
            case _Delete(key):
                writer.delete(key)
            case _Touch(keys, expiry_s):
                writer.touch(keys, expiry_s)
            case _Settle():
                pass  # answered after the transaction
            case ResetDisk():
                raise AssertionError("done before the transaction")

    def _answer(self, steps: Sequence[_Step]) -> None:
        """Tell those who wait for what was asked before."""
        if settles := [step for step in steps if isinstance(step, _Settle)]:
            is_durable = self._sync()
            for settle in settles:
                settle.report(is_durable and not self._undeleted)

    def _sync(self) -> bool:
        try:
            self._disk.sync()
        except DiskFailed as error:  # what is not durable after a power failure is recomputed
            log.warning("syncing the KV database failed", extra={"error": str(error)})
            return False
        return True


def _stored(write: DiskWrite) -> tuple[int, WriteOutcome, int]:
    num_bytes = stored_bytes(len(write.pages), write.page_bytes)
    return write.block_id, WriteOutcome.STORED, num_bytes
