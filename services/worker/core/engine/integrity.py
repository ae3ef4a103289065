"""What must hold of an engine at any moment: seen to by the tests after every event, and in
production now and then while the worker has nothing else to do.
"""

from collections import Counter

import numpy as np

from services.worker.core.engine.engine import EngineCore
from services.worker.core.kv.pages import NO_KEY, NO_PAGE, Block
from services.worker.core.turns.turn import Turn


def check_integrity(core: EngineCore) -> None:
    """Every page and every row of the table is in exactly one place, and what is counted is so.

    Raises:
        AssertionError: something does not hold: whatever is computed from now on may be wrong.
    """
    pool, turns = core.pool, [*core.running, *core.waiting]
    private = [block for turn in turns for block in turn.cache.own]
    private += [block for planned in core.flights for block in planned.retired]
    assert all(block.key is NO_KEY for block in private), "a turn's own block can be found"
    blocks = [*pool.blocks.values(), *pool.forgotten.values(), *private]
    _check_rows(core, blocks)
    _check_places(core, blocks)
    _check_refs(core, turns)
    idle = [block for block in pool.blocks.values() if block.group]
    assert pool.num_takeable == sum(block.num_present for block in idle), "miscounted idle pages"
    unsafe = [block for block in idle if not block.is_safe]
    assert pool.num_unsafe == sum(block.num_present for block in unsafe), "miscounted unsafe pages"
    loading = sum(block.loading for block in blocks)
    assert core.stager.num_loading == loading, "a load targets no block"


def _check_rows(core: EngineCore, blocks: list[Block]) -> None:
    rows = [*core.pool.unused()[1], *(block.row for block in blocks)]
    assert sorted(rows) == list(range(len(core.pool.table))), "a row is lost or of two blocks"


def _check_places(core: EngineCore, blocks: list[Block]) -> None:
    pool = core.pool
    held = pool.table[[block.row for block in blocks]]
    num_present = (held != NO_PAGE).sum(axis=1)
    assert (num_present == [block.num_present for block in blocks]).all(), "pages are miscounted"
    pages = np.concatenate([pool.unused()[0], held[held != NO_PAGE]])
    places = np.bincount(pages, minlength=pool.num_pages)
    assert (places == 1).all(), "a page is lost or in two places"


def _check_refs(core: EngineCore, turns: list[Turn]) -> None:
    refs = Counter(id(block) for turn in turns for block in turn.cache.prefix.blocks)
    images = core.adapters.images.values()
    refs.update(id(block) for image in images for block in image.chain.blocks)
    for key, block in core.pool.blocks.items():
        assert block.key == key
        assert block.refs == refs.pop(id(block), 0), "a block's users are miscounted"
        _check_block(core, block)
    for block in core.pool.forgotten.values():
        assert block.refs == refs.pop(id(block), 0), "a block's users are miscounted"
        assert block.refs or block.loading, "a forgotten block without use is kept"
        assert core.pool.blocks.get(block.key) is not block and not block.group
    assert not refs, "a turn runs on a block that is not cached"


def _check_block(core: EngineCore, block: Block) -> None:
    is_idle = block.refs == 0 and block.backed and not block.loading
    assert bool(block.group) == is_idle, "takeable, or not, against the rules"
    assert block.num_present > 0 and not (is_idle and block.lost), "a block without use is kept"
    if block.refs or not block.backed:
        assert core.pool.is_whole(block), "a page in use or not yet below was taken"
    if block.loading:
        num_loading = core.stager.num_loading_of(block)
        assert block.loading == num_loading, "a page under way was taken"
