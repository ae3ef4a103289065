"""A link that carries so much and no more."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from services.worker.device.copying import slow_link
from services.worker.device.copying.copies import HostCopier
from services.worker.device.copying.slow_link import SlowLink
from shared.arena import Arena

PAGE_BYTES = 1000
MS = 1_000_000


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now_ns = 5 * MS

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    module = SimpleNamespace(monotonic_ns=clock.monotonic_ns, sleep=clock.sleep)
    monkeypatch.setattr(slow_link, "time", module)
    return clock


def test_loads_come_one_after_another_at_its_speed(clock: Clock, tmp_path: Path) -> None:
    arena = Arena.create(tmp_path / "arena", 4, PAGE_BYTES)
    arena.pages[:] = np.arange(4, dtype=np.uint8)[:, None]
    pool = np.full((4, PAGE_BYTES), 9, np.uint8)
    link = SlowLink(HostCopier(pool), bytes_per_s=1e6)  # a page a millisecond
    first, second = link.load(arena, [3, 2], [0, 1]), link.load(arena, [1], [2])
    assert not first.is_over()
    first.wait()
    assert clock.now_ns == 7 * MS and first.is_over() and not second.is_over()
    second.wait()
    assert clock.now_ns == 8 * MS
    assert pool[:, 0].tolist() == [3, 2, 1, 9]
    clock.now_ns = 100 * MS
    link.load(arena, [0], [3]).wait()
    assert clock.now_ns == 101 * MS, "what was not carried meanwhile is not caught up with"


def test_what_is_built_crosses_it_and_what_goes_below_does_not(
    clock: Clock, tmp_path: Path
) -> None:
    arena = Arena.create(tmp_path / "arena", 2, PAGE_BYTES)
    pool = np.zeros((4, PAGE_BYTES), np.uint8)
    link = SlowLink(HostCopier(pool), bytes_per_s=1e6)
    link.write([1, 3], np.full((2, PAGE_BYTES), 7, np.uint8))
    assert clock.now_ns == 7 * MS and pool[[1, 3]].min() == 7
    copy = link.store([3], arena, [1])
    assert copy.is_over() and arena.pages[1].min() == 7
