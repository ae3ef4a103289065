"""Random bytes, many at a time."""

import os
import threading
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue

import pytest

from shared.randomness import FETCHED, random_bytes


def test_nobody_is_given_what_another_was(monkeypatch: pytest.MonkeyPatch) -> None:
    fetches: list[int] = []

    def counted(num: int) -> bytes:
        fetches.append(num)
        return urandom(num)

    urandom = os.urandom
    monkeypatch.setattr(os, "urandom", counted)
    given: list[bytes] = []

    def take() -> None:
        given.extend(random_bytes(12) for _ in range(2000))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(given)) == 8000 and {len(each) for each in given} == {12}
    assert len(fetches) <= 8000 * 12 // (FETCHED - 12) + 1


def test_more_than_is_fetched_at_once() -> None:
    assert len(random_bytes(FETCHED + 1)) == FETCHED + 1


def _tell(queue: "SimpleQueue[bytes]") -> None:
    queue.put(random_bytes(12))


def test_a_forked_child_is_given_others_than_its_parent() -> None:
    random_bytes(12)
    context = get_context("fork")
    queue: SimpleQueue[bytes] = context.SimpleQueue()
    child = context.Process(target=_tell, args=(queue,))
    child.start()
    assert queue.get() != random_bytes(12)
    child.join()
