"""Which part of a sequence can be brought up, and where its pages go."""

from collections.abc import Iterator

from services.kvstore.core.arena_block import NO_PAGE, ArenaBlock
from services.kvstore.core.arena_tier import ArenaTier
from services.kvstore.core.backlog import Backlog
from services.kvstore.core.disk_tier import DiskTier
from services.kvstore.core.effects import Effect
from services.kvstore.core.events import Stage
from services.kvstore.core.read_queue import ReadQueue
from shared.urgency import kind_of


def pin_prefix(
    arena: ArenaTier, disk: DiskTier, event: Stage, block_ids: Iterator[int]
) -> list[ArenaBlock]:
    """Pin the longest prefix of which every layer is in the arena, on its way there, or on disk;
    what cannot be told is not pinned either.
    """
    blocks: list[ArenaBlock] = []
    for depth, key in enumerate(event.keys[: event.blocks_max]):
        block = arena.blocks.get(key)
        if block is None:
            stored = disk.get(key)
            if (
                stored is None
                or stored.page_bytes != event.page_bytes
                or stored.num_layers != event.num_layers
            ):
                break
            block = ArenaBlock(
                block_id=next(block_ids),
                key=key,
                page_bytes=event.page_bytes,
                pages=[NO_PAGE] * event.num_layers,
                generations=[0] * event.num_layers,
                num_present=0,
                depth=depth,
                used_at_ns=stored.used_at_ns,
                owner=stored.owner,
                parent=stored.parent,
            )
            arena.insert(block)
        elif block.num_layers != event.num_layers:
            break
        block.depth = max(block.depth, depth)
        arena.pin(block)
        blocks.append(block)
    return blocks


def fill_prefix(
    arena: ArenaTier,
    disk: DiskTier,
    blocks: list[ArenaBlock],
    now_ns: int,
    effects: list[Effect],
) -> list[tuple[ArenaBlock, list[int]]]:
    """Give every missing layer of `blocks` a page. Where the arena cannot hold them all, blocks at
    the end are unpinned and leave the list, until the rest fits.

    Returns:
        The layers that now have a page and no bytes.
    """
    filled: list[tuple[ArenaBlock, list[int]]] = []
    num_missing = sum(block.num_missing for block in dict.fromkeys(blocks))
    pages = arena.take(num_missing, disk.__contains__, now_ns, effects)
    first = index = 0
    while index < len(blocks):
        block = blocks[index]
        end = first + block.num_missing
        while end > len(pages) and len(blocks) > index + 1:
            arena.unpin([blocks.pop()], effects)
            pages += arena.take(end - len(pages), disk.__contains__, now_ns, effects)
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


def queue_loads(
    queue: ReadQueue,
    backlog: Backlog,
    blocks: list[ArenaBlock],
    filled: list[tuple[ArenaBlock, list[int]]],
    priority: int,
) -> list[int]:
    """Queue what has no bytes yet, and move forward what another stage queued already.

    Returns:
        For each layer, how many pages of `blocks` have yet to come from disk.
    """
    kind = kind_of(priority)
    by_layer: list[list[ArenaBlock]] = [[] for _ in range(blocks[0].num_layers)]
    for block in blocks:
        for layer in block.queued:
            by_layer[layer].append(block)
        if kind < block.kind:
            for layer in block.queued:
                backlog.add(block.kind, layer, -block.page_bytes)
                backlog.add(kind, layer, block.page_bytes)
            block.kind = kind
    for block, layers in filled:
        if not block.queued:
            block.kind = kind
        block.queued.update(layers)
        for layer in layers:
            by_layer[layer].append(block)
            backlog.add(block.kind, layer, block.page_bytes)
    queue.push(by_layer, priority)
    num_coming = [len(waiting) for waiting in by_layer]
    for block in blocks:
        for layer in block.in_flight:
            num_coming[layer] += 1
    return num_coming
