"""Which part of a sequence can be brought up, and where its pages go."""

from collections.abc import Iterator

from services.kvstore.core.arena_tier import NO_PAGE, ArenaTier, Block
from services.kvstore.core.disk_tier import DiskTier
from services.kvstore.core.effects import Effect
from services.kvstore.core.events import Stage
from services.kvstore.core.load_queue import LoadQueue


def pin_prefix(
    arena: ArenaTier, disk: DiskTier, event: Stage, block_ids: Iterator[int]
) -> list[Block]:
    """Pin the longest prefix of which every layer is in the arena, on its way there, or on disk;
    what cannot be told is not pinned either.
    """
    blocks: list[Block] = []
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
            block = Block(
                block_id=next(block_ids),
                key=key,
                page_bytes=event.page_bytes,
                pages=[NO_PAGE] * event.num_layers,
                generations=[0] * event.num_layers,
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
    arena: ArenaTier, disk: DiskTier, blocks: list[Block], effects: list[Effect]
) -> list[tuple[Block, int]]:
    """Give every missing layer of `blocks` a page. Where the arena cannot hold them all, blocks at
    the end are unpinned and leave the list, until the rest fits.

    Returns:
        The layers that now have a page and no bytes.
    """
    missing: list[tuple[Block, int]] = []
    index = 0
    while index < len(blocks):
        block = blocks[index]
        layers = [layer for layer, page in enumerate(block.pages) if page == NO_PAGE]
        pages = arena.take(len(layers), disk.__contains__, effects)
        while len(pages) < len(layers) and len(blocks) > index + 1:
            arena.unpin(blocks.pop(), effects)
            pages += arena.take(len(layers) - len(pages), disk.__contains__, effects)
        if len(pages) < len(layers):
            arena.give(pages, effects)
            arena.unpin(blocks.pop(), effects)
            break
        for layer, page in zip(layers, pages, strict=True):
            block.pages[layer] = page
            block.generations[layer] = arena.generation(page)
            missing.append((block, layer))
        index += 1
    return missing


def queue_loads(
    queue: LoadQueue, blocks: list[Block], missing: list[tuple[Block, int]], priority: int
) -> int:
    """Queue what is missing, and move forward what another stage queued already.

    Returns:
        How many pages of `blocks` have yet to come from disk.
    """
    waiting = [(block, layer) for block in blocks for layer in block.queued]
    for block, layer in waiting + missing:
        queue.push(block, layer, priority)
    return sum(len(block.queued) + len(block.in_flight) for block in blocks)
