"""What must hold of a kvstore's core at any moment: checked by the tests after every event, and in
production now and then while nothing is loaded or written.
"""

from collections import Counter

import numpy as np

from services.kvstore.core.store import KvCore
from services.kvstore.core.tiers.arena_block import NO_PAGE, ArenaBlock
from services.kvstore.core.tiers.arena_tier import ArenaTier


def check_integrity(core: KvCore) -> None:
    """Every page is in exactly one place, and what is counted is so.

    Raises:
        AssertionError: something does not hold: KV may be overwritten from now on.
    """
    pins = Counter(
        id(block)
        for worker in core.workers
        for ticket in worker.tickets.values()
        for block in ticket.blocks
    )
    num_writing = num_bytes_waiting = 0
    for arena in core.arenas.values():
        _check_places(core, arena)
        for block in arena.holding.values():
            assert block.num_pins == pins.pop(id(block), 0), "a block's tickets are miscounted"
            _check_block(arena, block)
            is_read = block.queued or block.in_flight
            assert core.is_loading or not is_read, "a page waits for a load that is not queued"
            num_writing += block.is_writing
            num_bytes_waiting += (len(block.queued) + len(block.in_flight)) * block.page_bytes
        _check_counts(arena)
    _check_memory(core)
    assert not pins, "a ticket is for a block that is gone"
    assert num_bytes_waiting == core.num_bytes_waiting, "what is to be read is miscounted"
    assert num_writing == core.num_writing, "a block is written that is not here"


def _check_memory(core: KvCore) -> None:
    for key in core.arena_only.keys:
        assert key not in core.disk, "a block is listed as in memory alone and on disk"
        found = [arena.blocks[key] for arena in core.arenas.values() if key in arena.blocks]
        assert len(found) == 1 and found[0].is_whole, "a block is listed that is not in memory"
        write = core.arena_only.write_of(key)
        assert write is None or write.pages == found[0].pages, "others would read other pages"


def _check_places(core: KvCore, arena: ArenaTier) -> None:
    places = arena.free_pages
    for worker in core.workers:
        places += worker.leased.get(arena.page_bytes, ())
    for block in arena.holding.values():
        places += block.pages
    pages = np.array(places)
    held = np.bincount(pages[pages != NO_PAGE], minlength=arena.num_pages)
    assert (held == 1).all(), "a page is lost or in two places"


def _check_block(arena: ArenaTier, block: ArenaBlock) -> None:
    assert block.num_missing == block.pages.count(NO_PAGE), "a block's pages are miscounted"
    assert block.is_alive == (arena.blocks.get(block.key) is block), "found, or not, by mistake"
    assert (block in arena.idle) == block.is_idle, "takeable, or not, against the rules"
    if block.is_idle:
        assert block.num_present and block.is_alive, "a block without use is kept"
    if block.is_writing:
        assert not block.num_missing, "a page of the only copy was taken"
    if block.queued or block.in_flight:
        layers = block.queued | block.in_flight
        assert not block.queued & block.in_flight, "a page is loaded twice"
        assert all(block.pages[layer] != NO_PAGE for layer in layers), "a load without a page"


def _check_counts(arena: ArenaTier) -> None:
    blocks = arena.holding.values()
    assert arena.num_pinned == sum(block.num_pins > 0 for block in blocks), "miscounted pins"
    assert len(arena.idle) == sum(block.is_idle for block in blocks), "a block that is gone is idle"
    assert len(arena.blocks) == sum(block.is_alive for block in blocks), "found without pages"
