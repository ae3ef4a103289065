"""Blocks that come from other hosts: which pages are taken, and which blocks stay on this host."""

from dataclasses import dataclass

from services.kvstore.core.base.arrived import PageFacts
from services.kvstore.core.base.effects import DiskWrite, Effect, LoadOutcome, PageReads, SetWords
from services.kvstore.core.loading.peers import Deleted
from services.kvstore.core.tiers.arena_block import ArenaBlock
from services.kvstore.core.tiers.arena_tier import ArenaTier
from services.kvstore.core.tiers.host_blocks import HostBlocks
from services.kvstore.core.tiers.source import Source
from services.kvstore.core.tiers.writes import Writes
from services.kvstore.core.writing.write_queue import WriteQueue
from shared.arena import PageState


@dataclass(frozen=True, slots=True)
class FetchedPages:
    """How the pages of `reads` came. `facts` is what the peer reported of each that is READY."""

    reads: PageReads
    outcomes: list[LoadOutcome]
    facts: list[PageFacts | None]


class Arrivals:
    """Args:
    of_disk: this host's disk, as a source.
    """

    def __init__(
        self, here: HostBlocks, of_disk: Source, writes: Writes, queue: WriteQueue, deleted: Deleted
    ) -> None:
        self._here = here
        self._of_disk = of_disk
        self._writes = writes
        self._queue = queue
        self._deleted = deleted

    def judge(
        self, arena: ArenaTier, fetched: FetchedPages, effects: list[Effect]
    ) -> tuple[PageReads, list[LoadOutcome]]:
        """How each page ends, once what the peer reported was checked against what was requested.
        Workers that wait for a refused page see it by its word.
        """
        reads = fetched.reads
        outcomes = [
            self._judge(arena, arena.holding[block_id], reads.layer, facts)
            if outcome is LoadOutcome.READY
            else outcome
            for block_id, outcome, facts in zip(
                reads.block_ids, fetched.outcomes, fetched.facts, strict=True
            )
        ]
        refused = [
            at
            for at, (said, outcome) in enumerate(zip(fetched.outcomes, outcomes, strict=True))
            if said is not outcome
        ]
        if refused:
            pages = [reads.pages[at] for at in refused]
            generations = [reads.generations[at] for at in refused]
            effects.append(SetWords(reads.page_bytes, pages, generations, PageState.BAD))
        return reads, outcomes

    def keep(self, arena: ArenaTier, blocks: list[ArenaBlock], now_ns: int) -> None:
        """Have those of these written to the disk that came from a peer and are whole, so that the
        session has moved here. What continues nothing here is not kept: no turn could use it.
        """
        writes: list[DiskWrite] = []
        for block in blocks:
            arrived = block.arrived
            if arrived is None or not block.is_whole or not block.is_alive:
                continue
            if len(arrived.checksums) == block.num_layers and self._continues(block):
                arena.begin_writing(block)
                writes.append(self._writes.begin_arrived(block, arrived, self._of_disk))
        self._queue.add_copies(writes, now_ns)

    def _judge(
        self, arena: ArenaTier, block: ArenaBlock, layer: int, facts: PageFacts | None
    ) -> LoadOutcome:
        if facts is not None and facts.owner in self._deleted:
            return LoadOutcome.MISSING
        assert block.arrived is not None, "it comes from a peer"
        if (
            facts is None
            or facts.num_layers != block.num_layers
            or not block.arrived.take(block.key, layer, facts)
        ):
            return LoadOutcome.CORRUPT
        block.parent = block.arrived.parent
        arena.own(block, block.arrived.owner)
        return LoadOutcome.READY

    def _continues(self, block: ArenaBlock) -> bool:
        return (
            block.depth == 0
            or block.parent in self._here
            or self._writes.get(block.parent) is not None
        )
