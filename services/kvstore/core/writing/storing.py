"""What becomes of blocks that are to be written to the disk, and which are written again.

A block that the disk refuses, or is not given (`Admission`), stays in memory. So does one that it
evicts (`Tiers.evict`). All are written again when they are used and the disk has room for them; or
makes room, if it is the larger tier: else it would miss what it held if it were the only one.
"""

from collections import defaultdict

from services.kvstore.core.base.effects import (
    DiskWrite,
    Effect,
    TouchBlocks,
    WriteBlocks,
    WriteOutcome,
)
from services.kvstore.core.base.store_limits import Counts
from services.kvstore.core.disk.stored_block import StoredBlock
from services.kvstore.core.loading.loads import Loads
from services.kvstore.core.tiers.arena_block import ArenaBlock
from services.kvstore.core.tiers.arena_tier import ArenaTier
from services.kvstore.core.tiers.shrinking import Shrinking
from services.kvstore.core.tiers.tiers import Tiers
from services.kvstore.core.tiers.writes import Writes
from services.kvstore.core.writing.admission import Admission
from services.kvstore.core.writing.objects import Objects
from services.kvstore.core.writing.write_queue import WriteQueue
from shared.expiry import NS_PER_S, expiry_ns
from shared.owners import NO_OWNER, OwnerKey


class Storing:
    """Attributes:
    writes: that are not done.
    queue: of those, what the writer was not given yet.
    """

    def __init__(
        self, tiers: Tiers, loads: Loads, objects: Objects, shrinking: Shrinking, queue: WriteQueue,
        counts: Counts, *, has_objects: bool = False,
    ) -> None:  # fmt: skip
        self.writes = Writes()
        self._admission = Admission(tiers.blocks, self.writes, is_way_on=has_objects)
        self.queue = queue
        self._tiers = tiers
        self._loads = loads
        self._objects = objects
        self._shrinking = shrinking
        self._counts = counts

    def send(self, now_ns: int, effects: list[Effect]) -> None:
        """Have written what may be; what is not to be written gives its pages back, or stays in
        memory.
        """
        admits = self._admission.judge(now_ns)
        unwritten = self.queue.send(
            now_ns, self._loads.is_reading, self._tiers.arena_bytes,
            lambda write: self.writes.is_wanted(write) and admits(write),
            lambda write: self._admission.worth(write, now_ns), effects,
        )  # fmt: skip
        for write in unwritten:
            block, _ = self.writes.end(write.block_id)
            self._counts.num_blocks_refused += block.is_alive
            self._stay(block, write, now_ns)
            kept = self._tiers.blocks.arena_only.get(block.key)
            if block.is_alive and kept is not None:
                kept.is_refused = True
            self._tiers.arenas[block.page_bytes].settle([block], effects)

    def write_again(self, arena: ArenaTier, blocks: list[ArenaBlock], now_ns: int) -> None:
        """These were used, a sequence from its beginning on: those that are in memory alone go to
        the disk where they are of use there.
        """
        memory = self._tiers.blocks.arena_only
        writes: list[DiskWrite] = []
        num_bytes = 0
        for block in blocks:
            write = memory.write_of(block.key)
            if write is None or block.is_writing or not self._admission.continues(block):
                continue
            num_bytes += block.num_layers * block.page_bytes
            has_room = self._tiers.is_disk_larger or self._tiers.blocks.disk.has_room(num_bytes)
            if not has_room or not self.queue.has_room_for_copies(
                num_bytes, self._tiers.arena_bytes
            ):
                break
            arena.begin_writing(block)
            writes.append(self.writes.begin_again(block, write))
        self.queue.add_copies(writes, now_ns)

    def on_written(
        self, results: list[tuple[int, WriteOutcome, int]], now_ns: int, effects: list[Effect]
    ) -> None:
        """See `KvCore.on_written`."""
        retries: list[DiskWrite] = []
        settled: dict[int, list[ArenaBlock]] = defaultdict(list)  # by page size
        num_bytes_wanted = 0
        if any(outcome is WriteOutcome.FULL for _, outcome, _ in results):
            self._tiers.blocks.disk.on_full()
        for block_id, outcome, num_bytes in results:
            is_untaken = outcome in {WriteOutcome.FULL, WriteOutcome.FAILED}
            if is_untaken and (write := self.writes.retry(block_id)):
                retries.append(write)
                if outcome is WriteOutcome.FULL:
                    num_bytes_wanted += len(write.pages) * write.page_bytes
                continue
            self.queue.on_written(block_id)
            expiry_s = self.writes.expiry_s_of(block_id)
            block, write = self.writes.end(block_id)
            if outcome is WriteOutcome.STORED and block.is_alive:
                self._on_stored(block, write, expiry_s, num_bytes, now_ns, effects)
            elif is_untaken:
                self._counts.num_blocks_unwritten += block.key not in self._tiers.blocks.arena_only
                self._stay(block, write, now_ns, expiry_s)
            elif outcome is WriteOutcome.CORRUPT:
                self._counts.num_pages_corrupt += 1
                self._tiers.arenas[block.page_bytes].publish_bad(block, effects)
                self._tiers.forget(block.key, effects)
            settled[block.page_bytes].append(block)
        for page_bytes, blocks in settled.items():
            self._tiers.arenas[page_bytes].settle(blocks, effects)
        if retries:
            self._shrinking.make_room(2 * num_bytes_wanted, now_ns, effects)
            effects.append(WriteBlocks(retries))
        self._shrinking.step(now_ns, effects)
        self.send(now_ns, effects)

    def set_expiry(
        self, owner: OwnerKey, expiry_s: int, now_ns: int, effects: list[Effect]
    ) -> None:
        """A session's blocks have the expiry that was announced last, in every tier."""
        if keys := self._tiers.blocks.set_expiry(owner, expiry_ns(expiry_s), now_ns):
            effects.append(TouchBlocks(keys, expiry_s))
        self._objects.set_expiry(owner, expiry_ns(expiry_s), now_ns)

    def _stay(
        self, block: ArenaBlock, write: DiskWrite, now_ns: int, expiry_s: int | None = None
    ) -> None:
        """The disk does not have a block: it stays in memory, if it can be found there."""
        here = self._tiers.blocks
        if not block.is_alive or block.key in here:
            return
        its_own_ns = here.expiry_ns_of(block.owner)
        stored = self._as_stored(block, write, 0, now_ns)
        stored.expiry_ns = its_own_ns if expiry_s is None else expiry_ns(expiry_s)
        here.add_to_arena_only(stored, write)

    def _on_stored(
        self,
        block: ArenaBlock,
        write: DiskWrite,
        expiry_s: int | None,
        num_bytes: int,
        now_ns: int,
        effects: list[Effect],
    ) -> None:
        """A block is on disk now. A turn's commit says how long its session is kept; what came
        from elsewhere, or was in memory, is kept as its session is.
        """
        here = self._tiers.blocks
        if (known := here.arena_only.get(block.key)) is not None:
            expiry_s = known.expiry_ns // NS_PER_S
        stored = self._as_stored(block, write, num_bytes, now_ns)
        if expiry_s is None:
            stored.expiry_ns = here.expiry_ns_of(block.owner)
            if stored.expiry_ns:
                effects.append(TouchBlocks([block.key], stored.expiry_ns // NS_PER_S))
        else:
            if block.owner != NO_OWNER and known is None:
                self.set_expiry(block.owner, expiry_s, now_ns, effects)
            if expiry_s != write.expiry_s:  # as it was written, before another turn said so
                effects.append(TouchBlocks([block.key], expiry_s))
            stored.expiry_ns = expiry_ns(expiry_s)
        here.to_disk(stored)
        self._objects.on_stored(stored, now_ns)

    def _as_stored(
        self, block: ArenaBlock, write: DiskWrite, num_bytes: int, now_ns: int
    ) -> StoredBlock:
        is_saved = block.announced is not None and block.announced.is_saved
        return StoredBlock(
            block.key, block.num_layers, block.page_bytes, num_bytes, now_ns, now_ns, block.owner,
            parent=write.parent, is_saved=is_saved, return_kind=block.return_kind,
        )  # fmt: skip
