"""Slots: none is lost, taken twice, or taken from under a reader."""

import os
import queue
from pathlib import Path

import lmdb
import numpy as np
import pytest

from services.kvstore.core import DeleteBlocks, DiskWrite, LoadOutcome, WriteBlocks, WriteOutcome
from services.kvstore.tiers.disk import (
    ASIDE_NAME,
    DATA_NAME,
    CorruptPage,
    Disk,
    DiskFull,
    Index,
    scan,
    slabs,
)
from services.kvstore.tiers.disk.disk_writer import DiskWriter, WriteResults
from services.kvstore.tiers.disk.readers import Readers
from services.kvstore.tiers.disk.records import (
    BadRecord,
    BlockRecord,
    Place,
    pack_record,
    read_checksum,
    read_heads,
    read_place,
    unpack_record,
)
from services.kvstore.tiers.disk.slabs import Slabs
from services.kvstore.tiers.disk.start import start_disk
from services.kvstore.tiers.executors import ThreadExecutor
from shared.arena import Arena, Bytes, checksum
from shared.blocks import BlockKey
from shared.owners import OwnerKey
from shared.runtime.clock import ManualClock

MIB = 1024**2
PAGE_BYTES = 3000
NUM_LAYERS = 3
SLAB_NAME = f"{NUM_LAYERS}x{PAGE_BYTES}.slab"
SLOT_BYTES = 12288


def key(number: int) -> BlockKey:
    return BlockKey(bytes([number]) * 16)


def pages_of(number: int) -> Bytes:
    """uint8 [NUM_LAYERS, PAGE_BYTES]"""
    return np.random.default_rng(number).integers(0, 256, (NUM_LAYERS, PAGE_BYTES), np.uint8)


def write_of(number: int) -> DiskWrite:
    """Of `pages_of`."""
    sums = [checksum(page.data) for page in pages_of(number)]
    return DiskWrite(
        number, key(number), key(0), [number] * 64, "f", PAGE_BYTES, list(range(NUM_LAYERS)), sums
    )


def put(disk: Disk, *numbers: int) -> None:
    with disk.write(now_s=1) as writer:
        for number in numbers:
            writer.put(write_of(number), pages_of(number))


def delete(disk: Disk, *numbers: int) -> None:
    with disk.write(now_s=1) as writer:
        for number in numbers:
            writer.delete(key(number))


def is_there(disk: Disk, number: int) -> bool:
    """Whether all its pages come back; those that do are right."""
    out = np.zeros(PAGE_BYTES, np.uint8)
    outcomes = []
    with disk.read() as reader:
        for layer, page in enumerate(pages_of(number)):
            outcomes.append(reader.copy(key(number), layer, out))
            assert outcomes[-1] is not LoadOutcome.READY or np.array_equal(out, page)
    return set(outcomes) == {LoadOutcome.READY}


def test_a_record_comes_back_and_a_flipped_bit_is_found() -> None:
    record = BlockRecord(
        key(1), key(2), bytes(range(16)), 100, 1_700_000_000, 2**40, [5, -6], [2**64 - 1, 0, 7],
        OwnerKey(bytes(range(16, 32))),
    )  # fmt: skip
    raw = bytearray(pack_record(record))
    found = unpack_record(raw, key(1))
    assert found._replace(tokens=[*found.tokens], checksums=[*found.checksums]) == record
    place = read_place(raw, key(1))
    assert place == Place(3, 100, 2**40)
    assert [read_checksum(raw, place, layer) for layer in range(3)] == record.checksums
    heads, is_right = read_heads([key(1)], [bytes(raw)])
    assert is_right.all() and heads["slot"] == 2**40 and heads["owner"] == record.owner
    for at in range(0, len(raw), 7):
        raw[at] ^= 4
        with pytest.raises(BadRecord):
            unpack_record(raw, key(1))
        assert not read_heads([key(1)], [bytes(raw)])[1].any()
        raw[at] ^= 4
    for other, bad in ((key(2), raw), (key(1), raw[:-8]), (key(1), raw[:3])):
        with pytest.raises(BadRecord):
            read_place(bad, other)
        assert not read_heads([other], [bytes(bad)])[1].any()
    for short_or_long in (b"", key(1) + b"\0"):
        assert not read_heads([short_or_long], [bytes(raw)])[1].any()


def test_a_freed_slot_waits_for_everyone_who_may_read_it(tmp_path: Path) -> None:
    disk = Disk(tmp_path, MIB)
    put(disk, 1)
    with disk.read() as reader:
        page = reader.page(key(1), 1)
        assert page is not None
        delete(disk, 1)
        put(disk, *range(2, 200))  # takes every slot there is, and more
        assert page.page == pages_of(1)[1].tobytes()
        out = np.zeros(PAGE_BYTES, np.uint8)
        assert reader.copy(key(1), 2, out) is LoadOutcome.READY
    put(disk, 200)
    assert page.page != pages_of(1)[1].tobytes(), "it is used again now"
    disk.close()


def test_a_slot_that_is_free_for_good_is_used_again(tmp_path: Path) -> None:
    disk = Disk(tmp_path, MIB)
    put(disk, *range(1, 101))
    size = (tmp_path / SLAB_NAME).stat().st_size
    for _ in range(10):
        delete(disk, *range(1, 101))
        put(disk, *range(1, 101))
        put(disk, *range(1, 101))  # in place of themselves
    assert (tmp_path / SLAB_NAME).stat().st_size <= 3 * size
    assert all(is_there(disk, number) for number in range(1, 101))
    disk.close()


def put_delete_and_abort(disk: Disk) -> None:
    with disk.write(now_s=1) as writer:
        writer.put(write_of(2), pages_of(2))
        writer.delete(key(1))
        raise CorruptPage


def test_an_aborted_transaction_takes_and_frees_nothing(tmp_path: Path) -> None:
    disk = Disk(tmp_path, MIB)
    put(disk, 1)
    size = (tmp_path / SLAB_NAME).stat().st_size
    for _ in range(1000):
        with pytest.raises(CorruptPage):
            put_delete_and_abort(disk)
    assert (tmp_path / SLAB_NAME).stat().st_size == size
    put(disk, 2)
    assert is_there(disk, 1) and is_there(disk, 2)
    disk.close()


def test_a_restart_finds_what_is_taken(tmp_path: Path) -> None:
    disk = Disk(tmp_path, MIB)
    put(disk, *range(1, 40))
    delete(disk, *range(1, 40, 2))
    disk.close()
    disk = Disk(tmp_path, MIB)
    put(disk, *range(40, 90))
    assert [is_there(disk, number) for number in range(1, 5)] == [False, True, False, True]
    assert all(is_there(disk, number) for number in range(40, 90))
    disk.close()


def test_blocks_of_a_slab_that_lost_its_end_are_deleted_at_the_start(tmp_path: Path) -> None:
    disk = Disk(tmp_path, MIB)
    put(disk, *range(1, 11))
    disk.close()
    os.truncate(tmp_path / SLAB_NAME, 4 * SLOT_BYTES + 100)
    started = start_disk(tmp_path, MIB)
    assert not started.was_reset and started.scan.num_deleted == 6
    assert {block.key for block in started.scan.blocks} == {key(number) for number in range(1, 5)}
    put(started.disk, *range(11, 60))
    assert all(is_there(started.disk, number) for number in (1, 4, *range(11, 60)))
    started.disk.close()
    (tmp_path / SLAB_NAME).unlink()
    started = start_disk(tmp_path, MIB)
    assert (started.scan.blocks, started.scan.num_deleted) == ([], 53)
    started.disk.close()


def test_a_slab_that_is_cut_while_it_is_used_gives_no_bytes(tmp_path: Path) -> None:
    disk = Disk(tmp_path, MIB)
    put(disk, 1, 2)
    os.truncate(tmp_path / SLAB_NAME, SLOT_BYTES + 100)
    assert is_there(disk, 1)
    with disk.read() as reader:
        out = np.zeros(PAGE_BYTES, np.uint8)
        assert reader.copy(key(2), 0, out) is LoadOutcome.CORRUPT
        assert reader.page(key(2), 0) is None
    disk.close()


def test_a_start_reads_the_index_once_and_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path, MIB)
    put(disk, *range(1, 40))
    with disk.write(now_s=7) as writer:
        writer.touch([key(number) for number in (3, 5, 39)], 60)
        writer.delete(key(5))
    whole = disk.scan()
    monkeypatch.setattr(scan, "_CHUNK", 4)
    assert disk.scan().blocks == whole.blocks and len(whole.blocks) == 38
    assert {block.key: block.expiry_s for block in whole.blocks if block.used_s == 7} == {
        key(3): 60, key(39): 60
    }  # fmt: skip
    disk.close()
    monkeypatch.setattr(Index, "slots", None)
    started = start_disk(tmp_path, MIB)
    put(started.disk, *range(40, 60))
    assert all(is_there(started.disk, each.key[0]) for each in started.scan.blocks)
    assert all(is_there(started.disk, number) for number in range(40, 60))
    started.disk.close()


def test_of_two_blocks_in_one_slot_only_one_is_found(tmp_path: Path) -> None:
    disk = Disk(tmp_path, MIB)
    put(disk, 1)
    index = disk._index
    assert index is not None
    with index.env.begin(write=True, db=index.blocks) as transaction:
        raw = transaction.get(key(1))
        record = unpack_record(raw, key(1))
        twin = BlockRecord(
            key(2), record.parent, record.fingerprint, record.page_bytes, record.created_s,
            record.slot, record.tokens, record.checksums,
        )  # fmt: skip
        transaction.put(key(2), pack_record(twin))
    found = disk.scan()
    assert ([block.key for block in found.blocks], found.num_deleted) == ([key(1)], 1)
    disk.close()


def test_a_database_of_another_release_is_thrown_away(tmp_path: Path) -> None:
    with (
        lmdb.open(str(tmp_path), max_dbs=4) as env,
        env.begin(write=True) as transaction,
    ):
        values = env.open_db(b"values", txn=transaction)
        transaction.put(key(1) + b"\0\0", b"SYMKVPG1" + bytes(5504), db=values)
    (tmp_path / SLAB_NAME).write_bytes(bytes(SLOT_BYTES))
    started = start_disk(tmp_path, MIB)
    assert started.was_reset and not started.scan.blocks
    put(started.disk, 1)
    assert is_there(started.disk, 1)
    started.disk.close()
    assert not (tmp_path / ASIDE_NAME).exists()
    started = start_disk(tmp_path, MIB)
    assert not started.was_reset and len(started.scan.blocks) == 1
    started.disk.close()


def test_a_slab_without_an_index_is_removed(tmp_path: Path) -> None:
    disk = Disk(tmp_path, MIB)
    put(disk, 1)
    disk.close()
    (tmp_path / DATA_NAME).unlink()
    Disk(tmp_path, MIB).close()
    assert not (tmp_path / SLAB_NAME).exists()


@pytest.fixture
def two_shapes(tmp_path: Path) -> Slabs:
    """Room for 10 slots."""
    return Slabs(tmp_path, 10 * SLOT_BYTES, Readers(), {})


def test_slots_of_another_shape_give_their_room(two_shapes: Slabs, tmp_path: Path) -> None:
    taken = [two_shapes.take(NUM_LAYERS, PAGE_BYTES) for _ in range(10)]
    with pytest.raises(DiskFull):
        two_shapes.take(NUM_LAYERS, PAGE_BYTES)
    with pytest.raises(DiskFull):
        two_shapes.take(2, PAGE_BYTES)
    two_shapes.free(taken[3:7])
    other = [two_shapes.take(2, PAGE_BYTES) for _ in range(6)]
    assert len(set(other)) == 6
    status = (tmp_path / SLAB_NAME).stat()
    assert status.st_blocks * 512 < 7 * SLOT_BYTES < status.st_size
    with pytest.raises(DiskFull):
        two_shapes.take(2, PAGE_BYTES)
    two_shapes.free(other)
    again = [two_shapes.take(NUM_LAYERS, PAGE_BYTES) for _ in range(4)]
    assert sorted(place.slot for place in again) == sorted(place.slot for place in taken[3:7])
    two_shapes.close()


def test_a_full_file_system_is_an_error_before_anything_is_written(
    two_shapes: Slabs, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 3 * SLOT_BYTES
    allocate = os.posix_fallocate

    def limited(file: int, start: int, num_bytes: int) -> None:
        nonlocal left
        if num_bytes > left:
            raise OSError(28, "No space left on device")
        left -= num_bytes
        allocate(file, start, num_bytes)

    monkeypatch.setattr(os, "posix_fallocate", limited)
    monkeypatch.setattr(slabs, "WAIT_S", 0.0)
    taken = [two_shapes.take(NUM_LAYERS, PAGE_BYTES) for _ in range(3)]
    with pytest.raises(DiskFull):
        two_shapes.take(NUM_LAYERS, PAGE_BYTES)
    two_shapes.free(taken[:1])
    assert two_shapes.take(NUM_LAYERS, PAGE_BYTES) == taken[0]
    two_shapes.close()


def test_a_full_disk_waits_for_those_who_read(
    two_shapes: Slabs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = two_shapes._readers
    taken = [two_shapes.take(NUM_LAYERS, PAGE_BYTES) for _ in range(10)]
    reading = readers.reading()
    reading.__enter__()
    two_shapes.free(taken[:1])
    with readers.reading():  # began after it was freed: need not be waited for
        with monkeypatch.context() as patch:
            patch.setattr(slabs, "WAIT_S", 0.0)
            with pytest.raises(DiskFull):
                two_shapes.take(NUM_LAYERS, PAGE_BYTES)
        wait_for = Readers.wait_for

        def ends(self: Readers, epoch: int, timeout_s: float) -> None:
            reading.__exit__(None, None, None)
            wait_for(self, epoch, timeout_s)

        monkeypatch.setattr(Readers, "wait_for", ends)
        assert two_shapes.take(NUM_LAYERS, PAGE_BYTES) == taken[0]
    two_shapes.close()


def test_what_goes_makes_room_on_a_full_disk_for_what_comes_with_it(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "kv", MIB)
    disk._slabs._bytes_max = 4 * SLOT_BYTES
    put(disk, 1, 2, 3, 4)
    arena = Arena.create(tmp_path / "arena", NUM_LAYERS, PAGE_BYTES)
    arena.pages[:] = pages_of(5)
    outcomes: dict[int, WriteOutcome] = {}

    def report(results: WriteResults) -> None:
        outcomes.update((block_id, outcome) for block_id, outcome, _ in results)

    def must_not(error: BaseException) -> None:
        raise AssertionError("it failed") from error

    arenas = {PAGE_BYTES: arena}
    writer = DiskWriter(
        disk, arenas, ThreadExecutor("writer", 1, must_not), ManualClock(), report, must_not
    )
    write = write_of(5)
    writer.submit(WriteBlocks([write]))
    settled: queue.SimpleQueue[bool] = queue.SimpleQueue()
    writer.settle(settled.put)
    assert settled.get(timeout=30) and outcomes == {5: WriteOutcome.FULL}
    writer.submit(DeleteBlocks([(key(2), NUM_LAYERS)]))
    writer.submit(WriteBlocks([write]))
    writer.stop()
    assert outcomes == {5: WriteOutcome.STORED}
    assert [is_there(disk, number) for number in range(1, 6)] == [True, False, True, True, True]
    disk.close()
