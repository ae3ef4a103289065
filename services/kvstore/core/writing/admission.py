"""Which blocks are worth a write where the disk cannot take all: it is full, or its writer behind.

What is worth less than all that a full disk holds would be the first to go from there: it is not
written. Nor is, behind a writer that is too slow, what is worth least of what waits (`WriteQueue`).
It stays in memory, and is looked at again when it is next used. Where prediction is not trusted, or
nothing is known of what returns, a full disk gets everything, as by last use.
"""

from collections.abc import Callable

from services.kvstore.core.base.effects import DiskWrite
from services.kvstore.core.disk.disk_tier import DiskTier
from services.kvstore.core.tiers.arena_block import ArenaBlock
from services.kvstore.core.tiers.host_blocks import HostBlocks
from services.kvstore.core.tiers.writes import Writes
from services.kvstore.core.writing.write_queue import MUST, UNKNOWN
from shared.blocks import BlockKey


class Admission:
    """Args:
    is_way_on: the disk is the way to an object store, which keeps what it evicts.
    """

    def __init__(self, here: HostBlocks, writes: Writes, *, is_way_on: bool) -> None:
        self._here = here
        self._disk: DiskTier = here.disk
        self._writes = writes
        self._is_way_on = is_way_on

    def worth(self, write: DiskWrite, now_ns: int) -> float:
        """What it saves a second that the disk has this block, which waits to be written, or
        `UNKNOWN`; `MUST` where a ticket holds it, or its session has an expiry of its own.
        """
        block = self._writes.block_of(write)
        if block.num_pins or self._has_expiry(block, write):
            return MUST
        if self._is_way_on:
            return UNKNOWN
        worth = self._disk.worth_of(block.return_kind, block.used_at_ns, block.depth, now_ns)
        return UNKNOWN if worth is None else worth

    def judge(self, now_ns: int) -> Callable[[DiskWrite], bool]:
        """Says at this instant of each block, those before it first, whether it is to be written:
        on a full disk, what is worth as much as the least there, and continues what is there."""
        least: float | None = None
        refused: set[BlockKey] = set()

        def admits(write: DiskWrite) -> bool:
            nonlocal least
            if (worth := self.worth(write, now_ns)) == MUST:
                return True
            if write.parent in refused or self._is_refused(write.parent):
                refused.add(write.key)
                return False
            is_full = self._disk.is_full_with(len(write.pages) * write.page_bytes)
            if not is_full or worth == UNKNOWN:
                return True
            if least is None:
                least = self._disk.least_worth(now_ns)
            if worth >= least and self.continues(self._writes.block_of(write)):
                return True
            refused.add(write.key)
            return False

        return admits

    def continues(self, block: ArenaBlock) -> bool:
        """Whether what is before a block is on disk, or will be."""
        return (
            block.depth == 0
            or block.parent in self._disk
            or self._writes.get(block.parent) is not None
        )

    def _is_refused(self, key: BlockKey) -> bool:
        """What continues such a block is of no use on disk, once memory has evicted it."""
        block = self._here.arena_only.get(key)
        return block is not None and block.is_refused and self._writes.get(key) is None

    def _has_expiry(self, block: ArenaBlock, write: DiskWrite) -> bool:
        return bool(
            self._writes.expiry_s_of(write.block_id) or self._here.expiry_ns_of(block.owner)
        )
