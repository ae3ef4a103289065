"""After a restart nothing is known of what returns: what has returned since goes last, and of the
rest the least recently used goes first."""

from random import Random

import pytest

from services.kvstore.core import FoundBlocks
from services.kvstore.core.disk.stored_block import UNKNOWN
from shared.eviction import UNKNOWN_KIND
from tests.unit.kvstore.core.host import key_of
from tests.unit.kvstore.core.test_tier_sizes import ROOM, Tiers

MINUTE_NS = 60_000_000_000
NUM_BLOCKS = ROOM
FOUND = 6  # sessions


def restarted(disk: int) -> Tiers:
    """Over a full disk: of sessions that had one turn each, a minute apart."""
    tiers = Tiers(3 * ROOM, disk, eviction="predicted")
    for session in range(FOUND):
        tiers.now_ns += MINUTE_NS
        tiers.turn(session)
    blocks = [block for key in tiers.core.disk.keys if (block := tiers.core.disk.get(key))]
    assert len(blocks) == disk
    for block in blocks:
        block.depth, block.num_children, block.return_kind = UNKNOWN, 0, UNKNOWN_KIND
    Random(1).shuffle(blocks)
    again = Tiers(3 * ROOM, disk, eviction="predicted")
    again.now_ns = tiers.now_ns
    again.perform(again.core.on_disk_found(FoundBlocks.of(blocks), again.now_ns))
    return again


def whole(tiers: Tiers) -> list[int]:
    """Sessions whose every block is on disk."""
    found = range(FOUND)
    return [n for n in found if all(key_of(n, at) in tiers.core.disk for at in range(NUM_BLOCKS))]


@pytest.mark.parametrize("returned", range(FOUND))
def test_what_has_returned_since_goes_last(returned: int) -> None:
    tiers = restarted(FOUND * NUM_BLOCKS)
    tiers.now_ns += MINUTE_NS
    assert tiers.turn(returned) == NUM_BLOCKS
    rest = [session for session in range(FOUND) if session != returned]
    for number in range(1, FOUND):
        tiers.now_ns += MINUTE_NS
        tiers.turn(FOUND + number)
        assert whole(tiers) == sorted([returned, *rest[number:]])
