"""Columns say what objects would: of blocks one by one, and of a million at the start."""

import gc
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from services.kvstore.core.disk.block_table import NO_ROW, BlockTable, find_depths
from services.kvstore.core.disk.disk_tier import DiskTier
from services.kvstore.core.disk.found_blocks import FoundBlocks, Shape
from services.kvstore.core.disk.owned_rows import OwnedRows
from services.kvstore.core.disk.stored_block import UNKNOWN, StoredBlock
from shared.blocks import NO_PARENT, BlockKey
from shared.owners import NO_OWNER, OwnerKey
from tests.tables import largest_table

OWNERS = [NO_OWNER, *(OwnerKey(bytes([at]) * 15 + b"\0") for at in (1, 2, 3))]


def name(number: int) -> BlockKey:
    return BlockKey(number.to_bytes(2, "little") * 8)


def block(number: int, parent: BlockKey = NO_PARENT, owner: OwnerKey = NO_OWNER) -> StoredBlock:
    return StoredBlock(name(number), 1, 10, 10, number, number, owner, parent)


def slow_depth(parents: list[int], row: int) -> int:
    """`UNKNOWN` where it goes round."""
    seen = {row}
    while (row := parents[row]) != NO_ROW:
        if row in seen:
            return UNKNOWN
        seen.add(row)
    return len(seen) - 1


@given(st.data())
def test_depths_of_all_rows_at_once(data: st.DataObject) -> None:
    num = data.draw(st.integers(0, 12))
    parents = data.draw(st.lists(st.integers(NO_ROW, num - 1), min_size=num, max_size=num))
    depths = find_depths(np.array(parents, np.int32)).tolist()
    assert depths == [slow_depth(parents, row) for row in range(num)]


def test_depths_of_a_long_sequence() -> None:
    assert find_depths(np.arange(-1, 4999, dtype=np.int32)).tolist() == list(range(5000))


@given(st.data())
def test_a_session_s_rows_stand_in_the_order_in_which_they_came(data: st.DataObject) -> None:
    owned, model = OwnedRows(), {owner: list[int]() for owner in OWNERS[1:]}
    first = data.draw(st.lists(st.sampled_from(OWNERS), max_size=8))
    owned.fill(b"".join(first))
    here = dict(enumerate(first))
    for row, owner in here.items():
        model.get(owner, []).append(row)
    for row in data.draw(st.lists(st.integers(0, 9), max_size=20)):
        if row in here:
            owner = here.pop(row)
            assert owned.owner_of(row) == owner
            owned.remove(row)
            if owner != NO_OWNER:
                model[owner].remove(row)
        else:
            owner = here[row] = data.draw(st.sampled_from(OWNERS))
            owned.add(owner, row)
            model.get(owner, []).append(row)
    assert {owner: owned.of(owner) for owner in model} == model
    assert [owned.num_of(owner) for owner in model] == [len(rows) for rows in model.values()]
    assert [owned.last_of(owner) for owner in model] == [
        max(rows[-1:], default=NO_ROW) for rows in model.values()
    ]
    values = np.arange(10, dtype=np.int32)
    assert owned.greatest(values) == {o: max(rows) for o, rows in model.items() if rows}
    assert set(owned.owners) == {owner for owner, rows in model.items() if rows}


def shown(disk: DiskTier) -> list[tuple[object, ...]]:
    """All that anybody can ask, but how deep a block is: that is counted when it matters."""
    blocks = [found for key in disk.keys if (found := disk.get(key)) is not None]
    fields = [name for name in StoredBlock.__slots__ if name != "depth"]
    return [
        tuple(getattr(each, field) for each in blocks for field in fields),
        tuple((owner, *disk.owned(owner), disk.num_owned(owner)) for owner in OWNERS),
        tuple(disk.surplus(1, lambda _: False)),
        tuple(disk.surplus(10, lambda _: False)),
        tuple(disk.to_make_room(10_000, lambda _: False)),
        (disk.num_bytes, len(disk), *sorted(disk._awaited.items())),
    ]


@settings(deadline=None)
@given(st.data())
def test_what_is_found_at_the_start_is_as_if_it_had_come_block_by_block(
    data: st.DataObject,
) -> None:
    num = data.draw(st.integers(0, 9))
    blocks = [
        StoredBlock(
            name(number), num_layers := data.draw(st.integers(1, 2)), 10, 10 * num_layers,
            number // 2, number // 2, data.draw(st.sampled_from(OWNERS)),
            name(data.draw(st.integers(0, number - 1)) or 1000),
            expiry_ns=data.draw(st.sampled_from([0, 0, 3])),
        )
        for number in range(1, num + 1)
    ]  # fmt: skip
    at_once, one_by_one = DiskTier(25, expiry_ns=6), DiskTier(25, expiry_ns=6)
    blocks = data.draw(st.permutations(blocks))
    at_once.find(FoundBlocks.of(blocks))
    by_use = sorted(blocks, key=lambda each: each.used_at_ns)
    expiries = {each.owner: each.expiry_ns for each in by_use if each.owner != NO_OWNER}
    for each in by_use:  # a session has one expiry: the latest
        one_by_one.add(replace(each, expiry_ns=expiries.get(each.owner, each.expiry_ns)))
    assert shown(at_once) == shown(one_by_one)
    for key in data.draw(st.permutations([each.key for each in blocks])):
        for disk in (at_once, one_by_one):
            disk.use([key], 20, 5)
            assert disk.remove(key) is not None and key not in disk
        assert shown(at_once) == shown(one_by_one)


def test_rows_of_blocks_that_are_gone_are_given_again() -> None:
    disk = DiskTier(1000)
    for number in range(1, 500):
        disk.add(block(number, name(number - 1), OWNERS[number % 4]))
        if number > 5:
            disk.remove(name(number - 5))
    assert largest_table(disk) < 10
    assert disk.keys == [name(number) for number in range(495, 500)]
    disk.clear()
    disk.add(block(1))
    assert disk.keys == [name(1)] and largest_table(disk) <= 2


def test_the_collector_has_nothing_to_look_at_and_bytes_are_kept_once() -> None:
    disk, every = DiskTier(1 << 40), range(1, 301)
    owners = [OwnerKey(number.to_bytes(16, "big")) for number in every]
    before = len(gc.get_objects())
    for number, owner in zip(every, owners, strict=True):
        disk.add(block(number, BlockKey(bytes(name(number - 1))), owner))
    assert len(gc.get_objects()) - before < 30
    table = disk._table
    for n in every[1:]:
        parent = table.parents[table.rows[name(n)]]
        assert parent is table.keys[table.rows[name(n - 1)]]


def test_few_shapes_are_told_of_many_blocks() -> None:
    table = BlockTable()
    rows = [table.add(block(number)) for number in range(5)]
    assert {table.shape(row) for row in rows} == {Shape(1, 10, 10)}
    assert all(table.shape(row) is table.shape(rows[0]) for row in rows)
