"""Writes from the arena to the disk, off the event loop.

Results are reported in batches. What finds no room in the queue is reported as failed at once: the
event loop never waits for a disk. A block that is not written stays in the arena; a mark of use is
dropped. Deletions are always taken: each is of a block that was written, so there are never more
than the disk has blocks and the queue has writes.
"""

import logging
from collections import deque
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
from services.kvstore.tiers.disk.disk import stored_bytes
from services.kvstore.tiers.disk.errors import CorruptPage, DiskDamaged, DiskFailed, DiskFull
from services.kvstore.tiers.disk.ports import BlockStore, BlockWriter
from services.kvstore.tiers.executors import Executor
from shared.arena import ArenaView
from shared.blocks import BlockKey
from shared.runtime.clock import Clock

log = logging.getLogger(__name__)

WriteResults: TypeAlias = list[tuple[int, WriteOutcome, int]]
OnDamage: TypeAlias = Callable[[DiskDamaged], None]

WRITE_BATCH_BYTES = 64 * 1024 * 1024
SYNC_INTERVAL_NS = 1_000_000_000
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


class DiskWriter:
    """The single writer of the disk: takes what is waiting as one transaction, in order.

    Args:
        arenas: by page size in bytes.
        executor: of one thread; this writer's own.
        report: called with the outcome of every block: in the executor, or by `submit`.
        damaged: called in the executor, before the outcomes, when the database cannot be used.
        steps_max: blocks and marks of use that may wait.
    """

    def __init__(
        self,
        disk: BlockStore,
        arenas: Mapping[int, ArenaView],
        executor: Executor,
        clock: Clock,
        report: Callable[[WriteResults], None],
        damaged: OnDamage,
        steps_max: int = STEPS_MAX,
    ) -> None:
        assert executor.num_threads == 1, "transactions are written one after another"
        self._disk = disk
        self._arenas = arenas
        self._executor = executor
        self._clock = clock
        self._report = report
        self._damaged = damaged
        self._steps_max = steps_max
        self._steps: deque[_Step] = deque()
        self._undeleted: dict[BlockKey, _Delete] = {}
        self._is_dirty = False
        self._synced_at_ns = clock.now_ns()

    def submit(self, order: DiskEffect) -> None:
        """Do this after everything submitted before; see the module for what finds no room."""
        match order:
            case WriteBlocks(writes):
                room = max(self._steps_max - len(self._steps), 0)
                self._put(*writes[:room])
                if lost := writes[room:]:
                    self._report([(write.block_id, WriteOutcome.FAILED, 0) for write in lost])
            case DeleteBlocks(blocks):
                self._put(*[_Delete(key) for key, _ in blocks])
            case TouchBlocks(keys, expiry_s):
                if len(self._steps) < self._steps_max:
                    self._put(_Touch(keys, expiry_s))
            case ResetDisk():
                self._put(order)

    def settle(self, report: Callable[[bool], None]) -> None:
        """Call `report` in the executor once all that was submitted is done and durable: whether
        everything that was to be deleted is.
        """
        self._put(_Settle(report))

    def tick(self) -> None:
        """Now and then: make durable what was written a while ago."""
        self._executor.submit(self._sync_if_due)

    def stop(self) -> None:
        """Finish what was submitted, then end."""
        self._executor.stop()

    def _put(self, *steps: _Step) -> None:
        self._steps.extend(steps)
        self._executor.submit(self._drain)

    def _drain(self) -> None:
        while steps := self._take():
            if results := self._store(steps):
                self._report(results)
            self._answer(steps)
            self._is_dirty = True
            self._sync_if_due()

    def _sync_if_due(self) -> None:
        now_ns = self._clock.now_ns()
        if self._is_dirty and now_ns - self._synced_at_ns >= SYNC_INTERVAL_NS:
            self._sync()
            self._is_dirty = False
            self._synced_at_ns = now_ns

    def _take(self) -> list[_Step]:
        """What waits, as one batch."""
        steps: list[_Step] = []
        num_bytes = 0
        while self._steps and num_bytes < WRITE_BATCH_BYTES:
            step = self._steps.popleft()
            steps.append(step)
            if isinstance(step, DiskWrite):
                num_bytes += stored_bytes(len(step.pages), step.page_bytes)
        return steps

    def _reset(self, steps: Sequence[_Step]) -> tuple[WriteResults, Sequence[_Step]]:
        """If the disk is to be reset: writes that are lost, and the steps after that."""
        if ResetDisk() not in steps:
            return [], steps
        at = len(steps) - 1 - list(reversed(steps)).index(ResetDisk())
        self._undeleted.clear()
        self._disk.reset()
        lost = [step for step in steps[:at] if isinstance(step, DiskWrite)]
        return [(step.block_id, WriteOutcome.FAILED, 0) for step in lost], steps[at + 1 :]

    def _store(self, steps: Sequence[_Step]) -> WriteResults:
        results, steps = self._reset(steps)
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

    def _apply(self, writer: BlockWriter, step: _Step) -> None:
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
        """Report to callers of `settle`, if this batch ends with what they wait for."""
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
