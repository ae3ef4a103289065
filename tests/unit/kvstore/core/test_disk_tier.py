"""Which blocks the disk gives up: the least recently used, and none before what stands on it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.kvstore.core.disk_tier import DiskTier, StoredBlock
from shared.blocks import NO_PARENT, BlockKey

SIZE = 10


def name(number: int) -> BlockKey:
    return BlockKey(b"%016d" % number)


def tier(parents: dict[int, int], bytes_max: int = 1000) -> DiskTier:
    """Blocks by number, each with its parent's (0: none), used one after the other."""
    disk = DiskTier(bytes_max)
    for at_ns, (number, parent) in enumerate(parents.items(), start=1):
        before = name(parent) if parent else NO_PARENT
        disk.add(StoredBlock(name(number), 1, SIZE, SIZE, at_ns, at_ns, parent=before))
    return disk


def numbers(keys: list[BlockKey]) -> list[int]:
    return [int(key) for key in keys]


def nobody(_: BlockKey) -> bool:
    return False


def test_a_session_goes_from_its_end_although_its_root_is_oldest() -> None:
    disk = tier({1: 0, 2: 1, 3: 2, 4: 0})
    assert numbers(disk.oldest(SIZE, nobody)) == [3]
    assert numbers(disk.oldest(3 * SIZE, nobody)) == [3, 2, 1]
    assert numbers(disk.oldest(4 * SIZE, nobody)) == [3, 2, 1, 4]


def test_a_common_prefix_stays_as_long_as_anything_that_continues_it() -> None:
    disk = tier({1: 0, 2: 1, 3: 1, 4: 3})
    disk.use([name(4), name(3)], now_ns=9, stale_ns=100)
    assert numbers(disk.oldest(2 * SIZE, nobody)) == [2, 4]
    assert numbers(disk.oldest(4 * SIZE, nobody)) == [2, 4, 3, 1]


def test_what_is_busy_stays_and_so_does_what_it_stands_on() -> None:
    disk = tier({1: 0, 2: 1, 3: 2, 4: 0})
    assert numbers(disk.oldest(9 * SIZE, lambda key: key == name(2))) == [3, 4]


def test_age_takes_no_block_before_a_younger_one_that_continues_it() -> None:
    disk = tier({1: 0, 2: 1, 3: 0})
    disk.use([name(2)], now_ns=50, stale_ns=100)
    assert numbers(disk.surplus(10, nobody)) == [3]
    assert numbers(disk.surplus(60, nobody)) == [3, 2, 1]


def test_children_that_left_do_not_count() -> None:
    disk = tier({1: 0, 2: 1})
    disk.remove(name(2))
    assert numbers(disk.oldest(SIZE, nobody)) == [1]
    disk.clear()
    assert not disk._awaited and disk.oldest(SIZE, nobody) == []


@settings(deadline=None)
@given(st.data())
def test_a_block_never_outlives_its_parent(data: st.DataObject) -> None:
    parents = {
        number: data.draw(st.integers(0, number - 1))
        for number in range(1, data.draw(st.integers(1, 12)))
    }
    disk = tier(parents, bytes_max=data.draw(st.integers(0, 12)) * SIZE)
    for number in data.draw(st.lists(st.sampled_from([*parents, 99]))):
        disk.use([name(number)], now_ns=100 + number, stale_ns=10**9)
    busy = data.draw(st.sets(st.sampled_from([*parents, 99])))
    gone = disk.surplus(data.draw(st.integers(0, 112)), lambda key: int(key) in busy)
    assert len(set(gone)) == len(gone) and not set(numbers(gone)) & busy
    for key in gone:
        disk.remove(key)
        left = {int(each) for each in disk.keys}
        assert all(parents[each] in {0, *left} for each in left), "an orphan"
