"""Several processes compile: none waits for long, and none loads what another one's name is on."""

import fcntl
import logging
import os
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba import njit
from numba.core.caching import IndexDataCacheFile

from kernels import compile_lock
from kernels.compile_lock import LOCK_NAME, call_compiled, compiling
from kernels.paged_attention import store


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_lock, "_GAVE_UP", set())


def held(folder: Path) -> int:
    """The lock as another process holds it: a lock belongs to an opened file."""
    folder.mkdir(exist_ok=True)
    lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(lock, b"4711")
    return lock


def test_others_wait_while_one_compiles(tmp_path: Path) -> None:
    with compiling(tmp_path), pytest.raises(BlockingIOError):
        held(tmp_path)


def test_it_is_given_back_when_the_compiler_fails(tmp_path: Path) -> None:
    with pytest.raises(TypeError), compiling(tmp_path):
        raise TypeError
    os.close(held(tmp_path))


class Clock:
    """Time that passes while one sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_wait_is_logged_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    monkeypatch.setattr(compile_lock, "time", clock)
    caplog.set_level(logging.INFO)
    lock = held(tmp_path)
    with compiling(tmp_path, "row"):
        assert compile_lock.WAIT_S_MAX <= clock.now_s < compile_lock.WAIT_S_MAX + 1
    waiting, gave_up = caplog.records
    for record in (waiting, gave_up):
        assert (record.pid, record.kernel) == ("4711", "row")  # type: ignore[attr-defined]
    assert "waiting" in waiting.message and "not waiting" in gave_up.message
    before = clock.now_s
    with compiling(tmp_path):  # once in vain is enough
        assert clock.now_s == before
    os.close(lock)


def test_the_wait_ends_when_the_other_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = held(tmp_path)
    clock = Clock()

    def sleep(seconds: float) -> None:
        if clock.now_s == 0.0:
            os.close(lock)
        clock.now_s += seconds

    monkeypatch.setattr(clock, "sleep", sleep)
    monkeypatch.setattr(compile_lock, "time", clock)
    with compiling(tmp_path):
        assert clock.now_s < 1.0
        with pytest.raises(BlockingIOError):
            held(tmp_path)


def test_a_checkout_waits_for_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(compile_lock, "time", clock)
    lock = held(tmp_path / "other")
    with compiling(tmp_path / "own"):
        assert clock.now_s == 0.0
    os.close(lock)
    kept_at = Path(store._store.stats.cache_path)
    assert kept_at.is_relative_to(Path(store.__file__).parent)


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("words")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / LOCK_NAME).symlink_to(tmp_path / "mine")
    with compiling(tmp_path / "cache"):
        assert (tmp_path / "mine").read_text() == "words"


def cache(folder: Path) -> Any:
    return IndexDataCacheFile(str(folder), "f", (1.0, 2))


def test_two_processes_that_save_at_the_same_time_keep_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = cache(tmp_path), cache(tmp_path)
    load = one._load_index

    def late() -> Any:
        """The index as it was before another process saved something."""
        index = load()
        other.save("b", "of b")
        return index

    monkeypatch.setattr(one, "_load_index", late)
    one.save("a", "of a")
    assert cache(tmp_path).load("a") == "of a"
    assert cache(tmp_path).load("b") in (None, "of b")
    other.save("b", "of b")
    assert cache(tmp_path).load("a") == "of a" and cache(tmp_path).load("b") == "of b"


def test_code_is_there_before_the_index_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = IndexDataCacheFile(str(tmp_path), "f", (1.0, 1))  # an older source's
    old.save("a", "old")
    new = cache(tmp_path)
    monkeypatch.setattr(new, "_save_index", lambda _: None)
    new.save("a", "new")
    assert cache(tmp_path).load("a") is None
    assert old.load("a") == "old"


def test_a_full_disk_keeps_nothing_from_being_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    one = cache(tmp_path)
    monkeypatch.setattr(one, "_save_data", full)
    one.save("a", "of a")
    assert one.load("a") is None


def test_what_is_compiled_is_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> Any:
        def twice(numbers: Any) -> None:
            numbers[0] *= 2

        return njit(cache=True)(twice)

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    numbers = np.array([3.0])
    for num_hits in (0, 1):
        function = made()
        call_compiled(function, "f64", numbers)
        assert sum(function.stats.cache_hits.values()) == num_hits
    assert numbers[0] == 12.0
