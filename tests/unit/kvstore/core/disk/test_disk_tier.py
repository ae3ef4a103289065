"""Which blocks the disk gives up: the least recently used, and none before what stands on it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.kvstore.core.disk.disk_tier import DiskTier
from services.kvstore.core.disk.stored_block import StoredBlock
from shared.blocks import NO_PARENT, BlockKey
from shared.owners import OwnerKey

SIZE = 10
EXPIRY_NS = 1000


def name(number: int) -> BlockKey:
    return BlockKey(b"%016d" % number)


def tier(
    parents: dict[int, int], bytes_max: int = 1000, expiries: dict[int, int] | None = None
) -> DiskTier:
    """Blocks by number, each with its parent's (0: none), used one after the other."""
    disk = DiskTier(bytes_max, EXPIRY_NS)
    for at_ns, (number, parent) in enumerate(parents.items(), start=1):
        before = name(parent) if parent else NO_PARENT
        expiry_ns = (expiries or {}).get(number, 0)
        disk.add(
            StoredBlock(
                name(number), 1, SIZE, SIZE, at_ns, at_ns, parent=before, expiry_ns=expiry_ns
            )
        )
    return disk


def numbers(keys: list[BlockKey]) -> list[int]:
    return [int(key) for key in keys]


def not_busy(_: BlockKey) -> bool:
    return False


def test_a_session_goes_from_its_end_although_its_root_is_oldest() -> None:
    disk = tier({1: 0, 2: 1, 3: 2, 4: 0})
    assert numbers(disk.to_make_room(SIZE, not_busy)) == [3]
    assert numbers(disk.to_make_room(3 * SIZE, not_busy)) == [3, 2, 1]
    assert numbers(disk.to_make_room(4 * SIZE, not_busy)) == [3, 2, 1, 4]


def test_a_common_prefix_stays_as_long_as_anything_that_continues_it() -> None:
    disk = tier({1: 0, 2: 1, 3: 1, 4: 3})
    disk.use([name(4), name(3)], now_ns=9, stale_ns=100)
    assert numbers(disk.to_make_room(2 * SIZE, not_busy)) == [2, 4]
    assert numbers(disk.to_make_room(4 * SIZE, not_busy)) == [2, 4, 3, 1]


def test_what_is_busy_stays_and_so_does_what_it_stands_on() -> None:
    disk = tier({1: 0, 2: 1, 3: 2, 4: 0})
    assert numbers(disk.to_make_room(9 * SIZE, lambda key: key == name(2))) == [3, 4]


def test_age_takes_no_block_before_a_younger_one_that_continues_it() -> None:
    disk = tier({1: 0, 2: 1, 3: 0})
    disk.use([name(2)], now_ns=50, stale_ns=100)
    assert numbers(disk.surplus(EXPIRY_NS + 10, not_busy)) == [3]
    assert numbers(disk.surplus(EXPIRY_NS + 60, not_busy)) == [3, 2, 1]


def test_children_that_left_do_not_count() -> None:
    disk = tier({1: 0, 2: 1})
    disk.remove(name(2))
    assert numbers(disk.to_make_room(SIZE, not_busy)) == [1]
    disk.clear()
    assert not disk._awaited and disk.to_make_room(SIZE, not_busy) == []


def test_blocks_with_an_expiry_of_their_own_go_by_that_and_room_is_made_by_use_alone() -> None:
    disk = tier({1: 0, 2: 0, 3: 0, 4: 0}, expiries={1: 5000, 3: 30})
    assert numbers(disk.surplus(33, not_busy)) == []
    assert numbers(disk.surplus(34, not_busy)) == [3]
    assert numbers(disk.surplus(EXPIRY_NS + 5, not_busy)) == [2, 4, 3]
    assert numbers(disk.surplus(5002, not_busy)) == [1, 2, 4, 3]
    assert numbers(disk.to_make_room(3 * SIZE, not_busy)) == [1, 2, 3]


def test_what_sessions_share_lives_as_long_as_the_longest_of_them() -> None:
    disk = tier({1: 0, 2: 1, 3: 1}, expiries={1: 10, 2: 10, 3: 5000})
    assert numbers(disk.surplus(50, not_busy)) == [2]
    disk.remove(name(2))
    assert numbers(disk.surplus(5003, not_busy)) == []
    assert numbers(disk.surplus(5004, not_busy)) == [3, 1]


def test_what_is_kept_only_for_what_continues_it_is_not_looked_at_time_and_again() -> None:
    disk = tier({number: number - 1 for number in range(1, 50)}, expiries={49: 5000})
    looked_at: list[BlockKey] = []

    def is_busy(key: BlockKey) -> bool:
        looked_at.append(key)
        return False

    assert disk.surplus(EXPIRY_NS + 100, is_busy) == []
    assert set(looked_at) == {name(number) for number in range(1, 49)}
    looked_at.clear()
    assert disk.surplus(EXPIRY_NS + 101, is_busy) == []
    assert not looked_at
    assert numbers(disk.keys) == list(range(1, 50))
    assert numbers(disk.surplus(5050, is_busy)) == list(range(49, 0, -1)), "all with the last"


def test_what_was_kept_so_goes_when_nothing_continues_it_or_room_is_needed() -> None:
    disk = tier({1: 0, 2: 1, 3: 0, 4: 3, 5: 0, 6: 5}, expiries={2: 5000, 4: 5000, 6: 5000})
    now_ns = EXPIRY_NS + 10
    assert disk.surplus(now_ns, not_busy) == []
    disk.remove(name(2))
    assert numbers(disk.surplus(now_ns, lambda key: key == name(1))) == [], "it is busy"
    assert numbers(disk.surplus(now_ns, not_busy)) == [1]
    assert numbers(disk.to_make_room(2 * SIZE, not_busy)) == [1, 4]
    assert numbers(disk.to_make_room(3 * SIZE, not_busy)) == [1, 4, 3]
    disk.use([name(5)], now_ns, 10**9)
    disk.remove(name(6))
    disk.remove(name(3))
    assert numbers(disk.surplus(now_ns, not_busy)) == [1], "used again"
    assert numbers(disk.keys) == [1, 4, 5]
    disk.clear()
    assert disk.keys == []


def test_a_session_that_is_told_another_expiry_has_it_with_all_its_blocks() -> None:
    disk, owner = DiskTier(1000, EXPIRY_NS), OwnerKey(b"s" * 16)
    for number in (1, 2):
        before = name(1) if number == 2 else NO_PARENT
        disk.add(StoredBlock(name(number), 1, SIZE, SIZE, 0, 0, owner, before))
    assert disk.set_expiry(owner, 0, 7) == []
    assert numbers(disk.set_expiry(owner, 20, 7)) == [2, 1]
    assert disk.expiry_ns_of(owner) == 20
    assert numbers(disk.surplus(27, not_busy)) == []
    assert numbers(disk.surplus(28, not_busy)) == [2, 1]
    stale = disk.use([name(2)], now_ns=12, stale_ns=10**6)
    assert numbers(stale) == [], "noted a quarter of its expiry ago at most"
    assert numbers(disk.use([name(2)], now_ns=13, stale_ns=10**6)) == [2]


@settings(deadline=None)
@given(st.data())
def test_what_is_expired_goes_and_nothing_else(data: st.DataObject) -> None:
    parents = {
        number: data.draw(st.integers(0, number - 1))
        for number in range(1, data.draw(st.integers(1, 10)))
    }
    expiries = {number: data.draw(st.sampled_from([0, 5, 40])) for number in parents}
    disk = tier(parents, expiries=expiries)
    now_ns = data.draw(st.sampled_from([3, 12, 44, 48, EXPIRY_NS + 4, EXPIRY_NS + 50]))
    busy = data.draw(st.sets(st.sampled_from([*parents, 99])))
    kept: set[int] = set()
    for number in reversed(parents):  # those that continue it have higher numbers
        is_alive = number >= now_ns - (expiries[number] or EXPIRY_NS)
        if is_alive or number in busy or number in kept:
            kept |= {number, parents[number]}
    gone = numbers(disk.surplus(now_ns, lambda key: int(key) in busy))
    assert sorted(gone) == sorted(parents.keys() - kept)
    assert all(parents[each] not in gone[: gone.index(each)] for each in gone)


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
    gone = disk.surplus(EXPIRY_NS + data.draw(st.integers(0, 112)), lambda key: int(key) in busy)
    assert len(set(gone)) == len(gone) and not set(numbers(gone)) & busy
    for key in gone:
        disk.remove(key)
        left = {int(each) for each in disk.keys}
        assert all(parents[each] in {0, *left} for each in left), "an orphan"
