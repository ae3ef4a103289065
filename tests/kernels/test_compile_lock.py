"""One process compiles at a time."""

import fcntl

import pytest

from kernels.compile_lock import LOCK_PATH, compiling


def try_lock() -> None:
    """As another process would: a lock belongs to an opened file."""
    with LOCK_PATH.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_others_wait_while_one_compiles() -> None:
    with compiling(), pytest.raises(BlockingIOError):
        try_lock()


def test_it_is_given_back_when_the_compiler_fails() -> None:
    with pytest.raises(TypeError), compiling():
        raise TypeError
    with LOCK_PATH.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
