"""What is dropped at once takes little time, and all of it goes."""

from services.kvstore.core import DeleteBlocks, DoMore, Effect, FoundBlocks, KvCore, Limits
from services.kvstore.core.disk.stored_block import StoredBlock
from shared.blocks import BlockKey

NUM, EACH = 11, 3


def core() -> KvCore:
    """Blocks that expire together."""
    limits = Limits(disk_bytes_max=1000, expiry_ns=100, noted_ns=100, drops_max=EACH)
    made = KvCore(limits)
    blocks = [StoredBlock(BlockKey(bytes([at]) * 16), 1, 10, 10, 5, 5) for at in range(1, NUM + 1)]
    assert not made.on_disk_found(FoundBlocks.of(blocks), 100)
    return made


def num_deleted(effects: list[Effect]) -> int:
    return sum(len(each.blocks) for each in effects if isinstance(each, DeleteBlocks))


def test_what_expires_at_once_goes_in_turns() -> None:
    kvstore = core()
    effects = kvstore.on_tick(106)
    seen = []
    while DoMore() in effects:
        assert effects.count(DoMore()) == 1
        seen.append(num_deleted(effects))
        effects = kvstore.on_do_more(106)
    assert [*seen, num_deleted(effects)] == [3, 3, 3, 2]
    assert not len(kvstore.disk) and kvstore.counts.num_blocks_dropped == NUM


def test_a_turn_is_asked_for_once_and_a_tick_goes_on_all_the_same() -> None:
    kvstore = core()
    assert DoMore() in kvstore.on_tick(106)
    left = []
    for _ in range(3):
        assert DoMore() not in kvstore.on_tick(106)
        left.append(len(kvstore.disk))
    assert left == [5, 2, 0]
    assert not kvstore.on_do_more(106)
