"""A disk from which so much is read and no more."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from services.kvstore.core import DiskWrite, LoadOutcome
from services.kvstore.tiers.disk import Disk, slow_disk
from services.kvstore.tiers.disk.slow_disk import OVERSLEPT_NS, SlowDisk
from shared.arena import checksum
from shared.blocks import BlockKey

PAGE_BYTES = 1000
MS = 1_000_000
KEYS = [BlockKey(bytes([number]) * 16) for number in range(3)]
MISSING = BlockKey(bytes([9]) * 16)


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now_ns = 5 * MS

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


def test_pages_are_those_of_the_disk_and_come_at_its_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    module = SimpleNamespace(monotonic_ns=clock.monotonic_ns, sleep=clock.sleep)
    monkeypatch.setattr(slow_disk, "time", module)
    disk = SlowDisk(Disk(tmp_path / "kv", 1 << 20), bytes_per_s=1e5)  # a page in 10 ms
    pages = np.arange(3, dtype=np.uint8)[:, None].repeat(PAGE_BYTES, 1)
    with disk.write(now_s=1) as writer:
        for number, key in enumerate(KEYS):
            sums = [checksum(pages[number].data)]
            write = DiskWrite(number, key, KEYS[0], [], "f", PAGE_BYTES, [number], sums)
            writer.put(write, pages)
    disk.sync()
    assert clock.now_ns == 5 * MS, "writes are as fast as ever"
    out = np.full(PAGE_BYTES, 7, np.uint8)
    with disk.read() as reader:
        assert reader.copy(KEYS[2], 0, out, may_wait=False) is None, "no page is in memory"
        assert clock.now_ns == 5 * MS and out.min() == 7
        assert reader.copy(KEYS[2], 0, out) is LoadOutcome.READY
        assert clock.now_ns == 10 * MS and (out == 2).all()
        stored = reader.page(KEYS[1], 0)
        assert stored is not None and bytes(stored.page) == b"\1" * PAGE_BYTES
        assert clock.now_ns == 20 * MS
        clock.now_ns = 23 * MS
        assert reader.copy(KEYS[0], 0, out) is LoadOutcome.READY
        assert clock.now_ns == 30 * MS, "a thread that was late does not make it slower"
        clock.now_ns = 100 * MS
        assert reader.copy(KEYS[0], 0, out) is LoadOutcome.READY
        assert clock.now_ns == 105 * MS, "what was not read in a long while is not caught up with"
        assert reader.page(MISSING, 0) is None
        assert reader.copy(MISSING, 0, out) is LoadOutcome.MISSING
        assert clock.now_ns == 105 * MS, "what is not there takes no time"
    disk.reset()
    with disk.read() as reader:
        assert reader.page(KEYS[0], 0) is None


def test_reads_that_begin_at_once_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    module = SimpleNamespace(monotonic_ns=lambda: OVERSLEPT_NS, sleep=slept.append)
    monkeypatch.setattr(slow_disk, "time", module)
    disk = SlowDisk(Disk(tmp_path / "kv", 1 << 20), bytes_per_s=1e5)
    for _ in range(3):  # by three threads
        disk.wait(PAGE_BYTES)
    assert slept == [0.005, 0.015, 0.025]
