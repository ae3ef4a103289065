"""An arena is registered with a device piece by piece, and used all the while."""

import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from services.worker.device.copying import pieces as pieces_module
from services.worker.device.copying.gate import PageGate
from services.worker.device.copying.mover import KvMover
from services.worker.device.copying.pieces import Pieces
from services.worker.device.copying.piecewise_copier import ARENA_DETOURS, PiecewiseCopier
from shared.arena import Arena, Bytes
from tests.counters import value_of
from tests.unit.worker.device.copying.copiers import CheckedLink

PAGE_BYTES = 4096
PIECE_BYTES = 2 * PAGE_BYTES
PAGES = 7  # three pieces, and half a one
LONG_S = 30.0


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces_module, "POLL_S", 0.001)


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    """Two pages have memory."""
    return Arena.create(tmp_path / "arena", PAGES, PAGE_BYTES, num_reserved=2)


@pytest.fixture
def link() -> CheckedLink:
    return CheckedLink(np.zeros((PAGES, PAGE_BYTES), np.uint8))


def fill(arena: Arena, num_pages: int) -> None:
    """As the kvstore does."""
    arena.populate(0, num_pages)
    arena.filled[0] = num_pages


def address(arena: Arena, page: int) -> int:
    return int(arena.pages[page].ctypes.data)


def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < deadline_s, "the awaited event never came"
        time.sleep(0)


def test_a_piece_is_registered_once_all_of_it_has_memory(arena: Arena, link: CheckedLink) -> None:
    pieces = Pieces(arena, link, PIECE_BYTES)
    until(lambda: pieces.have([0, 1]))
    assert not pieces.have([1, 2])
    fill(Arena.attach(arena.path), 5)  # in another process, say
    until(lambda: pieces.have([0, 1, 2, 3]))
    assert not pieces.have([4])
    fill(arena, PAGES)
    pieces.wait()
    assert pieces.have(list(range(PAGES)))
    whole = PIECE_BYTES
    assert list(link.registered.items()) == [
        (address(arena, 0), whole), (address(arena, 2), whole), (address(arena, 4), whole),
        (address(arena, 6), PAGE_BYTES),
    ]  # fmt: skip
    pieces.close()


def test_it_ends_and_unregisters_in_order_however_far_it_has_come(
    arena: Arena, link: CheckedLink
) -> None:
    fill(arena, 4)
    pieces = Pieces(arena, link, PIECE_BYTES)
    until(lambda: pieces.have([2]))
    pieces.close()
    assert link.unregistered == [address(arena, 0), address(arena, 2)]
    assert not pieces.have([0])
    assert not any(each.name == "kv-register" for each in threading.enumerate())


def test_an_arena_that_nobody_holds_is_let_go(arena: Arena, link: CheckedLink) -> None:
    fill(arena, PAGES)
    held = Arena.attach(arena.path)
    copier = PiecewiseCopier(link, PIECE_BYTES)
    copier.attach(held)
    copier.wait_registered(held)
    assert len(link.registered) == 4
    del held
    gc.collect()
    until(lambda: len(link.unregistered) == 4)
    assert not link.registered


def test_a_piece_that_is_refused_stays_slow_and_right(
    arena: Arena, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(arena, PAGES)
    pool: Bytes = np.zeros((PAGES, PAGE_BYTES), np.uint8)
    link = CheckedLink(pool, refused=[0, 2])
    refused = pieces_module.ARENA_PIECES.labels("refused")
    detours = [ARENA_DETOURS.labels(way) for way in ("load", "store")]
    before = [value_of(each) for each in (refused, *detours)]
    copier = PiecewiseCopier(link, PIECE_BYTES)
    copier.attach(arena)
    copier.wait_registered(arena)
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 1
    arena.pages[:] = np.arange(PAGES, dtype=np.uint8)[:, None]
    copier.load(arena, [2, 6, 3], [0, 1, 2]).wait()
    assert link.num_staged == 0
    copier.load(arena, [5, 2], [3, 4]).wait()
    assert pool[:5, 0].tolist() == [2, 6, 3, 5, 2]
    copier.store([1, 0], arena, [2, 3]).wait()
    assert link.num_staged == 2
    copier.store([2], arena, [4]).wait()
    assert arena.pages[:, 0].tolist() == [0, 1, 6, 2, 3, 5, 6]
    assert (arena.pages == arena.pages[:, :1]).all() and (pool == pool[:, :1]).all()
    after = [value_of(each) for each in (refused, *detours)]
    assert [now - then for now, then in zip(after, before, strict=True)] == [2, 2, 1]
    mover = KvMover(copier, PageGate(PAGES), lambda _: None)
    mover.close()
    assert not link.registered


def test_a_store_by_a_detour_that_nobody_waits_for_writes_nothing(
    arena: Arena, link: CheckedLink
) -> None:
    """Whose lease is over by then does not wait."""
    copier = PiecewiseCopier(link, PIECE_BYTES)
    copier.attach(arena)
    link._pool[0] = 9
    copy = copier.store([0], arena, [5])
    assert not arena.pages[5].any()
    copy.wait()
    assert (arena.pages[5] == 9).all()
    copier.close()
