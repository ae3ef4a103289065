"""The disk: what is stored comes back, and what is damaged is found."""

import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import lmdb
import numpy as np
import pytest

from services.kvstore.core import (
    DeleteBlocks,
    DiskWrite,
    LoadOutcome,
    PageReads,
    ReadPages,
    ResetDisk,
    TouchBlocks,
    WriteBlocks,
    WriteOutcome,
)
from services.kvstore.tiers.disk import (
    CorruptPage,
    Disk,
    DiskDamaged,
    FoundBlock,
    Reader,
    Writer,
    disk_writer,
)
from services.kvstore.tiers.disk.check import pack_scan, unpack_scan
from services.kvstore.tiers.disk.disk_writer import DiskWriter, WriteResults
from services.kvstore.tiers.disk.loader import ORDERS_MAX, Loader, LoadResults
from services.kvstore.tiers.disk.start import start_disk
from services.kvstore.tiers.executors import ThreadExecutor
from services.kvstore.tiers.values import BadValue, ValueHeader, pack_header, unpack_header
from shared.arena import Arena, PageState, checksum
from shared.blocks import BlockKey
from shared.owners import NO_OWNER, OwnerKey
from shared.runtime.clock import ManualClock

PAGE_BYTES = 5000
NUM_LAYERS = 2
OWNER = OwnerKey(bytes(range(16)))
MIB = 1024**2


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    arena = Arena.create(tmp_path / "arena", 8, PAGE_BYTES)
    arena.pages[:] = np.random.default_rng(7).integers(0, 256, arena.pages.shape, np.uint8)
    return arena


def key(number: int) -> BlockKey:
    return BlockKey(bytes([number]) * 16)


def write_of(arena: Arena, number: int, pages: list[int]) -> DiskWrite:
    return DiskWrite(
        block_id=number,
        key=key(number),
        parent=key(0),
        tokens=[number] * 64,
        fingerprint="f",
        page_bytes=PAGE_BYTES,
        pages=pages,
        checksums=[checksum(arena.pages[page].data) for page in pages],
    )


def reads_of(layer: int, pages: dict[int, int]) -> PageReads:
    """This layer of blocks, by number, into these pages."""
    keys = [key(number) for number in pages]
    return PageReads(layer, PAGE_BYTES, list(pages), keys, list(pages.values()), [3] * len(pages))


def read(disk: Disk, arena: Arena, number: int, layer: int) -> LoadOutcome | None:
    """Into page 7."""
    arena.pages[7] = 0
    with disk.read() as reader:
        return reader.copy(key(number), layer, arena.pages[7])


def test_a_header_comes_back_and_a_flipped_bit_is_found() -> None:
    header = ValueHeader(
        key(1), key(2), bytes(16), 3, 12, 100, 1_700_000_000, [5, 6], 2**64 - 1, OWNER
    )
    raw = bytearray(pack_header(header))
    assert len(raw) == 512
    assert unpack_header(raw) == header
    for at in (0, 20, 200, 511):
        raw[at] ^= 4
        with pytest.raises(BadValue):
            unpack_header(raw)
        raw[at] ^= 4
    with pytest.raises(BadValue):
        unpack_header(raw[:-1])


def test_a_scan_tells_whose_blocks_are(tmp_path: Path, arena: Arena) -> None:
    disk = Disk(tmp_path / "kv", MIB)
    with disk.write(now_s=100) as writer:
        writer.put(replace(write_of(arena, 1, [0, 1]), owner=OWNER), arena.pages)
        writer.put(write_of(arena, 2, [2, 3]), arena.pages)
    scan = disk.scan()
    assert [block.owner for block in scan.blocks] == [OWNER, NO_OWNER]
    assert unpack_scan(pack_scan(scan)).blocks == scan.blocks
    disk.close()


def test_an_expiry_is_noted_with_the_last_use(tmp_path: Path, arena: Arena) -> None:
    disk = Disk(tmp_path / "kv", MIB)
    with disk.write(now_s=100) as writer:
        writer.put(replace(write_of(arena, 1, [0, 1]), expiry_s=60), arena.pages)
        writer.put(write_of(arena, 2, [2, 3]), arena.pages)
    with disk.write(now_s=150) as writer:
        writer.touch([key(2)], 90)
    assert [(each.used_s, each.expiry_s) for each in disk.scan().blocks] == [(100, 60), (150, 90)]
    assert unpack_scan(pack_scan(disk.scan())).blocks == disk.scan().blocks
    with disk.write(now_s=160) as writer:
        writer.touch([key(1)])
    assert [(each.used_s, each.expiry_s) for each in disk.scan().blocks] == [(160, 0), (150, 90)]
    disk.close()


def test_stored_pages_come_back_after_a_restart(tmp_path: Path, arena: Arena) -> None:
    disk = Disk(tmp_path / "kv", MIB)
    with disk.write(now_s=100) as writer:
        writer.put(write_of(arena, 1, [0, 1]), arena.pages)
        writer.put(write_of(arena, 2, [2, 3]), arena.pages)
        writer.touch([key(2)])
    disk.close()
    disk = Disk(tmp_path / "kv", MIB)
    assert disk.scan().blocks == [
        FoundBlock(key(number), NUM_LAYERS, PAGE_BYTES, 100, NO_OWNER, key(0)) for number in (1, 2)
    ]
    with disk.write(now_s=150) as writer:
        writer.touch([key(1)])
    assert [block.used_s for block in disk.scan().blocks] == [150, 100]
    assert read(disk, arena, 2, 1) is LoadOutcome.READY
    assert np.array_equal(arena.pages[7], arena.pages[3])
    with disk.write(now_s=300) as writer:
        writer.delete(key(2))
    assert read(disk, arena, 2, 1) is LoadOutcome.MISSING
    disk.close()


@pytest.mark.parametrize("at", [0, 4999])
def test_a_flipped_byte_is_found(tmp_path: Path, arena: Arena, at: int) -> None:
    disk = Disk(tmp_path / "kv", MIB)
    with disk.write(now_s=1) as writer:
        writer.put(write_of(arena, 1, [0, 1]), arena.pages)
    slab = tmp_path / "kv" / f"{NUM_LAYERS}x{PAGE_BYTES}.slab"
    data = bytearray(slab.read_bytes())
    data[data.index(arena.pages[1].tobytes()) + at] ^= 1
    slab.write_bytes(data)
    assert read(disk, arena, 1, 1) is LoadOutcome.CORRUPT
    assert read(disk, arena, 1, 0) is LoadOutcome.READY
    disk.close()


def test_a_page_that_is_not_what_was_announced_is_not_stored(tmp_path: Path, arena: Arena) -> None:
    disk = Disk(tmp_path / "kv", MIB)
    write = write_of(arena, 1, [0, 1])
    arena.pages[1, 17] ^= 1
    with pytest.raises(CorruptPage), disk.write(now_s=1) as writer:
        writer.put(write, arena.pages)
    assert disk.scan().blocks == []
    disk.close()


def test_a_database_that_is_none_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv" / "data.mdb").write_bytes(b"\1" * 16384)
    started = start_disk(tmp_path / "kv", MIB)
    assert started.was_reset and not started.scan.blocks
    started.disk.close()


def fail(error: BaseException) -> None:
    raise error


def writer_of(
    disk: Disk,
    arena: Arena,
    report: Callable[[WriteResults], None],
    damaged: Callable[[DiskDamaged], None] = fail,
    steps_max: int = disk_writer.STEPS_MAX,
) -> DiskWriter:
    executor = ThreadExecutor("writer", 1, fail)
    arenas = {PAGE_BYTES: arena}
    return DiskWriter(disk, arenas, executor, ManualClock(), report, damaged, steps_max)


def loader_of(
    disk: Disk,
    arena: Arena,
    reports: "queue.SimpleQueue[LoadResults]",
    damaged: Callable[[DiskDamaged], None] = fail,
    orders_max: int = ORDERS_MAX,
) -> Loader:
    return Loader(
        disk, {PAGE_BYTES: arena}, ThreadExecutor("loader", 2, fail), ManualClock(),
        lambda results, _: reports.put(results), damaged, orders_max,
    )  # fmt: skip


def test_the_writer_loses_only_what_fails(
    tmp_path: Path, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Writer.put

    def full(self: Writer, write: DiskWrite, pages: np.typing.NDArray[np.uint8]) -> None:
        if write.block_id == 2:
            raise lmdb.MapFullError("full")
        put(self, write, pages)

    monkeypatch.setattr(Writer, "put", full)
    disk = Disk(tmp_path / "kv", MIB)
    reports: queue.SimpleQueue[WriteResults] = queue.SimpleQueue()
    writer = writer_of(disk, arena, reports.put)
    bad = write_of(arena, 3, [4, 5])
    bad = replace(bad, checksums=[bad.checksums[0] + 1, *bad.checksums[1:]])
    writes = [write_of(arena, 1, [0, 1]), write_of(arena, 2, [2, 3]), bad]
    writer.submit(WriteBlocks(writes))
    writer.submit(TouchBlocks([key(1)]))
    writer.stop()
    outcomes = {}
    while not reports.empty():
        outcomes.update({block_id: outcome for block_id, outcome, _ in reports.get()})
    assert outcomes == {1: WriteOutcome.STORED, 2: WriteOutcome.FULL, 3: WriteOutcome.CORRUPT}
    assert [block.key for block in disk.scan().blocks] == [key(1)]
    disk.close()


def test_a_deletion_that_fails_is_made_up_for(
    tmp_path: Path, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path / "kv", MIB)
    delete = Writer.delete
    is_full = threading.Event()
    is_full.set()

    def failing(self: Writer, block: BlockKey) -> None:
        if is_full.is_set():
            raise lmdb.MapFullError("full")
        delete(self, block)

    monkeypatch.setattr(Writer, "delete", failing)
    monkeypatch.setattr(disk_writer, "WRITE_BATCH_BYTES", 1)  # every block is its own transaction
    reports: queue.SimpleQueue[WriteResults] = queue.SimpleQueue()
    writer = writer_of(disk, arena, reports.put)
    writer.submit(WriteBlocks([write_of(arena, 1, [0, 1])]))
    writer.submit(DeleteBlocks([(key(1), NUM_LAYERS)]))
    writer.submit(WriteBlocks([write_of(arena, 2, [2, 3])]))
    settled: queue.SimpleQueue[bool] = queue.SimpleQueue()
    writer.settle(settled.put)
    assert not settled.get(timeout=10), "it is not deleted yet"
    is_full.clear()
    writer.submit(WriteBlocks([write_of(arena, 3, [4, 5])]))
    writer.settle(settled.put)
    assert settled.get(timeout=10)
    writer.stop()
    assert [block.key for block in disk.scan().blocks] == [key(2), key(3)]
    disk.close()


@pytest.mark.parametrize(
    ("error", "num_damaged"),
    [
        (lmdb.Error("Input/output error"), 0),
        (lmdb.ReadersFullError(""), 0),
        (lmdb.PanicError(""), 1),
    ],
)
def test_a_read_that_fails_says_nothing_of_the_page(
    tmp_path: Path,
    arena: Arena,
    monkeypatch: pytest.MonkeyPatch,
    error: lmdb.Error,
    num_damaged: int,
) -> None:
    def failing(
        self: Reader,
        key: BlockKey,
        layer: int,
        out: np.typing.NDArray[np.uint8],
        *,
        may_wait: bool = True,
    ) -> LoadOutcome | None:
        raise error

    monkeypatch.setattr(Reader, "copy", failing)
    disk = Disk(tmp_path / "kv", MIB)
    reports: queue.SimpleQueue[LoadResults] = queue.SimpleQueue()
    damages: list[DiskDamaged] = []
    loader = loader_of(disk, arena, reports, damages.append)
    batch = [reads_of(0, {1: 5, 2: 6}), reads_of(1, {1: 7})]
    loader.submit(ReadPages(batch))
    loader.stop()
    assert reports.get() == [(reads, [LoadOutcome.FAILED] * len(reads.pages)) for reads in batch]
    assert arena.word(5) == arena.word(6) == arena.word(7) == (3, PageState.BAD)
    assert len(damages) == num_damaged
    disk.close()


def test_what_finds_no_room_with_a_stuck_writer_is_not_written_and_deletions_are_taken(
    tmp_path: Path, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, may_go = threading.Event(), threading.Event()
    put = Writer.put

    def held(self: Writer, write: DiskWrite, pages: np.typing.NDArray[np.uint8]) -> None:
        has_begun.set()
        assert may_go.wait(30)
        put(self, write, pages)

    monkeypatch.setattr(Writer, "put", held)
    monkeypatch.setattr(disk_writer, "WRITE_BATCH_BYTES", 1)  # every block is its own transaction
    disk = Disk(tmp_path / "kv", MIB)
    reports: queue.SimpleQueue[WriteResults] = queue.SimpleQueue()
    writer = writer_of(disk, arena, reports.put, steps_max=1)
    writer.submit(WriteBlocks([write_of(arena, 1, [0, 1])]))
    assert has_begun.wait(30)
    writer.submit(WriteBlocks([write_of(arena, 2, [2, 3]), write_of(arena, 3, [4, 5])]))
    assert reports.get_nowait() == [(3, WriteOutcome.FAILED, 0)]
    writer.submit(TouchBlocks([key(1)]))
    writer.submit(DeleteBlocks([(key(1), NUM_LAYERS)]))
    assert len(writer._steps) == 2
    may_go.set()
    writer.stop()
    assert [block.key for block in disk.scan().blocks] == [key(2)]
    disk.close()


def test_loads_that_find_no_room_with_a_stuck_loader_fail(
    tmp_path: Path, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, may_go = threading.Event(), threading.Event()

    def held(
        self: Reader,
        key: BlockKey,
        layer: int,
        out: np.typing.NDArray[np.uint8],
        *,
        may_wait: bool = True,
    ) -> LoadOutcome | None:
        has_begun.set()
        assert may_go.wait(30)
        return LoadOutcome.READY

    monkeypatch.setattr(Reader, "copy", held)
    disk = Disk(tmp_path / "kv", MIB)
    reports: queue.SimpleQueue[LoadResults] = queue.SimpleQueue()
    loader = loader_of(disk, arena, reports, orders_max=1)
    loader.submit(ReadPages([reads_of(0, {1: 5})]))
    assert has_begun.wait(30)
    loader.submit(ReadPages([reads_of(1, {1: 6})]))
    loader.submit(ReadPages([reads_of(0, {2: 7})]))
    assert reports.get_nowait() == [(reads_of(0, {2: 7}), [LoadOutcome.FAILED])]
    assert arena.word(7) == (3, PageState.BAD)
    may_go.set()
    loader.stop()
    assert arena.word(5) == arena.word(6) == (3, PageState.READY)
    disk.close()


def test_the_writer_begins_a_damaged_database_anew_in_order(
    tmp_path: Path, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path / "kv", MIB)
    put = Writer.put

    def failing(self: Writer, write: DiskWrite, pages: np.typing.NDArray[np.uint8]) -> None:
        if disk.life == 1:
            raise lmdb.CorruptedError("made up")
        put(self, write, pages)

    monkeypatch.setattr(Writer, "put", failing)
    reports: queue.SimpleQueue[WriteResults] = queue.SimpleQueue()
    damages: queue.SimpleQueue[DiskDamaged] = queue.SimpleQueue()
    writer = writer_of(disk, arena, reports.put, damages.put)
    writer.submit(WriteBlocks([write_of(arena, 1, [0, 1])]))
    assert damages.get(timeout=60).life == 1
    assert [outcome for _, outcome, _ in reports.get(timeout=60)] == [WriteOutcome.FAILED]
    writer.submit(DeleteBlocks([(key(1), NUM_LAYERS)]))  # of the old database
    writer.submit(ResetDisk())
    writer.submit(WriteBlocks([write_of(arena, 1, [0, 1])]))
    writer.stop()
    assert [block.key for block in disk.scan().blocks] == [key(1)]
    disk.close()


def test_the_loader_publishes_every_page_it_was_given(tmp_path: Path, arena: Arena) -> None:
    disk = Disk(tmp_path / "kv", MIB)
    with disk.write(now_s=1) as writer:
        writer.put(write_of(arena, 1, [0, 1]), arena.pages)
    reports: queue.SimpleQueue[LoadResults] = queue.SimpleQueue()
    loader = loader_of(disk, arena, reports)
    batch = [reads_of(0, {1: 6, 2: 7}), reads_of(1, {1: 5})]
    loader.submit(ReadPages(batch))
    loader.stop()
    outcomes = [[LoadOutcome.READY, LoadOutcome.MISSING], [LoadOutcome.READY]]
    assert reports.get() == list(zip(batch, outcomes, strict=True))
    assert arena.word(6) == (3, PageState.READY)
    assert arena.word(7) == (3, PageState.BAD)
    assert np.array_equal(arena.pages[6], arena.pages[0])
    assert np.array_equal(arena.pages[5], arena.pages[1])
    disk.close()


def test_what_was_read_before_a_read_failed_is_there(
    tmp_path: Path, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path / "kv", MIB)
    with disk.write(now_s=1) as writer:
        writer.put(write_of(arena, 1, [0, 1]), arena.pages)
    copy = Reader.copy

    def failing(
        self: Reader,
        key_: BlockKey,
        layer: int,
        out: np.typing.NDArray[np.uint8],
        *,
        may_wait: bool = True,
    ) -> LoadOutcome | None:
        if key_ == key(2):
            raise lmdb.Error("Input/output error")
        return copy(self, key_, layer, out, may_wait=may_wait)

    monkeypatch.setattr(Reader, "copy", failing)
    reports: queue.SimpleQueue[LoadResults] = queue.SimpleQueue()
    loader = loader_of(disk, arena, reports)
    loader.submit(ReadPages([reads_of(0, {1: 5, 2: 6}), reads_of(1, {1: 7})]))
    loader.stop()
    outcomes = [each for _, each in reports.get()]
    assert outcomes == [[LoadOutcome.READY, LoadOutcome.FAILED], [LoadOutcome.FAILED]]
    assert arena.word(5) == (3, PageState.READY)
    assert arena.word(6) == arena.word(7) == (3, PageState.BAD)
    disk.close()
