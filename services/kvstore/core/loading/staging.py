"""Which part of a sequence can be loaded, from where, and where its pages go."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from services.kvstore.core.base.arrived import Arrived
from services.kvstore.core.base.effects import Effect
from services.kvstore.core.base.events import Stage
from services.kvstore.core.disk.disk_tier import DiskTier
from services.kvstore.core.disk.stored_block import StoredBlock
from services.kvstore.core.tiers.arena_block import NO_PAGE, ArenaBlock
from services.kvstore.core.tiers.arena_tier import ArenaTier
from services.kvstore.core.tiers.source import Source
from shared.blocks import BlockKey


@dataclass(frozen=True, slots=True)
class Found:
    """Where a block can be read from, and what is known of it there; `facts` None: nothing yet."""

    source: Source
    facts: StoredBlock | None = None


FindBlock = Callable[[int, BlockKey], Found | None]  # by the key's place in the question


def blocks_below(
    disk: DiskTier, of_disk: Source, of_peer: Source | None, event: Stage
) -> FindBlock:
    """Where the block of this place and key can be had, this host's disk first; None: nowhere, as
    far as we know.

    Args:
        of_peer: the host that has blocks; None: there is none.
    """
    num_offered = 0 if event.offer is None or of_peer is None else event.offer.num_blocks
    shape = (event.num_layers, event.page_bytes)

    def find(at: int, key: BlockKey) -> Found | None:
        if (stored := disk.get(key)) is not None:
            is_same = (stored.num_layers, stored.page_bytes) == shape
            return Found(of_disk, stored) if is_same else None
        return Found(of_peer) if of_peer is not None and at < num_offered else None

    return find


def pin_prefix(
    arena: ArenaTier, event: Stage, find: FindBlock, block_ids: Iterator[int]
) -> list[ArenaBlock]:
    """Pin the longest prefix of which every layer is in the arena, loading, or to be had
    from a source; what does not fit in the answer is not pinned either.
    """
    blocks: list[ArenaBlock] = []
    for at, key in enumerate(event.keys[: event.blocks_max]):
        depth = event.num_before + at
        block = arena.blocks.get(key)
        if block is None or (block.num_missing and not block.queued):
            if (found := find(at, key)) is None:
                break
            if block is None:
                block = _new_block(next(block_ids), key, depth, found, event)
                arena.insert(block)
            block.source = found.source
        if block.num_layers != event.num_layers:
            break
        if block.arrived is None and block.source.host_id is not None:
            block.arrived = Arrived(event.fingerprint)
        block.depth = max(block.depth, depth)
        arena.pin(block)
        blocks.append(block)
    return blocks


def _new_block(block_id: int, key: BlockKey, depth: int, found: Found, event: Stage) -> ArenaBlock:
    block = ArenaBlock(
        block_id=block_id,
        key=key,
        page_bytes=event.page_bytes,
        pages=[NO_PAGE] * event.num_layers,
        generations=[0] * event.num_layers,
        num_present=0,
        depth=depth,
        used_at_ns=0,
        source=found.source,
    )
    if (facts := found.facts) is not None:
        block.used_at_ns = facts.used_at_ns
        block.owner, block.parent = facts.owner, facts.parent
    return block


def fill_prefix(
    arena: ArenaTier,
    has_copy: Callable[[BlockKey], bool],
    blocks: list[ArenaBlock],
    now_ns: int,
    effects: list[Effect],
) -> list[tuple[ArenaBlock, list[int]]]:
    """Give every missing layer of `blocks` a page. Where the arena cannot hold them all, blocks at
    the end are unpinned and leave the list, until the rest fits.

    Args:
        has_copy: whether a block is below, so that the arena may evict parts of it.

    Returns:
        The layers that now have a page and no bytes.
    """
    filled: list[tuple[ArenaBlock, list[int]]] = []
    num_missing = sum(block.num_missing for block in dict.fromkeys(blocks))
    pages = arena.take(num_missing, has_copy, now_ns, effects)
    first = index = 0
    while index < len(blocks):
        block = blocks[index]
        end = first + block.num_missing
        while end > len(pages) and len(blocks) > index + 1:
            arena.unpin([blocks.pop()], effects)
            pages += arena.take(end - len(pages), has_copy, now_ns, effects)
        if end > len(pages):
            arena.unpin([blocks.pop()], effects)
            break
        if first < end:
            own = pages[first:end]
            filled.append((block, block.fill(own, arena.generations(own))))
            first = end
        index += 1
    arena.give(pages[first:], effects)
    return filled
