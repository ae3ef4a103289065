"""The arena: a mapped file whose words tell what may be read."""

import struct
from pathlib import Path

import numpy as np
import pytest

from shared.arena import HEADER_BYTES, MAGIC, Arena, ArenaError, PageState, checksum


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv.arena"


def test_what_one_side_writes_the_other_sees(path: Path) -> None:
    kvstore, worker = Arena.create(path, 5, 100), Arena.attach(path)
    assert (worker.num_pages, worker.page_bytes) == (5, 100)
    worker.pages[3] = 7
    kvstore.set_word(3, 12, PageState.READY)
    assert kvstore.pages[3].tolist() == [7] * 100
    assert not kvstore.pages[2].any() and not kvstore.pages[4].any()
    assert worker.word(3) == (12, PageState.READY)
    worker.close()
    kvstore.close()


def test_a_new_arena_is_free_and_empty(path: Path) -> None:
    arena = Arena.create(path, 600, 64)  # words beyond one page of memory
    assert {arena.word(page) for page in range(600)} == {(0, PageState.FREE)}
    assert not arena.pages.any()
    assert path.stat().st_mode & 0o777 == 0o600
    arena.close()


def test_links_in_its_place_are_not_followed(path: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in (path, path.with_name(path.name + ".new")):
        name.symlink_to(victim)
    Arena.create(path, 2, 64).close()
    assert victim.read_text() == "precious" and not path.is_symlink()
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        Arena.attach(link)


@pytest.mark.parametrize(
    ("word", "promised"),
    [
        ((7, PageState.READY), PageState.READY),
        ((7, PageState.FILLING), PageState.FILLING),
        ((7, PageState.BAD), PageState.BAD),
        ((7, PageState.FREE), PageState.BAD),
        ((8, PageState.READY), PageState.BAD),
        ((8, PageState.FILLING), PageState.BAD),
        ((6, PageState.READY), PageState.BAD),
    ],
)
def test_a_word_promises_one_generation_only(
    path: Path, word: tuple[int, PageState], promised: PageState
) -> None:
    arena = Arena.create(path, 1, 8)
    arena.set_word(0, *word)
    assert arena.promise(0, 7) is promised
    arena.close()


def test_a_generation_may_be_as_large_as_it_ever_gets(path: Path) -> None:
    arena = Arena.create(path, 1, 8)
    arena.set_word(0, 2**31 - 1, PageState.BAD)  # it travels as 32 bits
    assert arena.word(0) == (2**31 - 1, PageState.BAD)
    arena.close()


def test_many_words_at_once_are_the_same_as_one_by_one(path: Path) -> None:
    arena = Arena.create(path, 6, 8)
    arena.set_words([4, 0, 2], [2**31 - 1, 7, 300], PageState.READY)
    words = [arena.word(page) for page in range(6)]
    free = (0, PageState.FREE)
    ready = [(generation, PageState.READY) for generation in (7, 300, 2**31 - 1)]
    assert words == [ready[0], free, ready[1], free, ready[2], free]
    arena.set_words([], [], PageState.BAD)
    assert words == [arena.word(page) for page in range(6)]
    assert arena.words.flags.aligned and arena.words.itemsize == 8
    arena.close()


def test_making_it_anew_leaves_earlier_readers_their_mapping(path: Path) -> None:
    old = Arena.create(path, 2, 16)
    old.pages[1] = 1
    new = Arena.create(path, 4, 16)
    new.pages[1] = 2
    assert old.pages[1].tolist() == [1] * 16
    assert Arena.attach(path).num_pages == 4
    assert not path.with_name("kv.arena.new").exists()


def test_closing_while_somebody_reads_is_harmless(path: Path) -> None:
    arena = Arena.create(path, 1, 16)
    view = arena.pages[0]
    view[:] = 9
    arena.close()
    assert view.tolist() == [9] * 16


@pytest.mark.parametrize("is_new_kernel", [True, False])
def test_memory_comes_behind_pages_when_they_are_populated(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_new_kernel: bool
) -> None:
    """Whatever their size."""
    if not is_new_kernel:
        monkeypatch.setattr("shared.arena._POPULATE_WRITE", 9999)
    arena = Arena.create(path, 1000, 5000, num_reserved=3)
    assert path.stat().st_size > 1000 * 5000 > 10 * 4096 > path.stat().st_blocks * 512
    arena.pages[2] = 5
    arena.populate(3, 400)
    assert 403 * 5000 <= path.stat().st_blocks * 512 < 450 * 5000
    arena.populate(403, 597)
    assert path.stat().st_blocks * 512 >= 1000 * 5000
    assert arena.pages[2].tolist() == [5] * 5000
    assert not arena.pages[3:].any() and not arena.words.any()
    arena.close()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        bytes(HEADER_BYTES),
        struct.pack("<8sIIQQQ", MAGIC, 99, 0, 1, 8, HEADER_BYTES) + bytes(HEADER_BYTES),
    ],
)
def test_what_is_no_arena_of_this_release_is_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(ArenaError, match=r"kv\.arena"):
        Arena.attach(path)


def test_no_file_no_arena(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Arena.attach(path)
    with pytest.raises(OSError, match="No such file"):
        Arena.create(path.parent / "nowhere" / "kv.arena", 1, 8)


def test_the_checksum_is_of_the_bytes_whatever_holds_them() -> None:
    page = np.arange(256, dtype=np.uint8)
    assert checksum(page.data) == checksum(bytes(range(256)))
    assert checksum(page.data) != checksum(bytes(256))
