"""The gate: who waits for bytes, who for the start of their copy."""

import threading

from services.worker.device.copying.copies import OVER
from services.worker.device.copying.gate import PageGate

SECOND = 1_000_000_000


def test_what_is_ready_is_not_waited_for() -> None:
    gate = PageGate(4)
    assert gate.wait([0, 1], 0) and gate.wait_started([2, 3], 0) == []


def test_a_started_copy_is_enough_for_who_runs_behind_it() -> None:
    gate = PageGate(4)
    gate.set_loading([0, 1, 2])
    assert gate.wait_started([0, 1], 0) is None
    gate.set_copying([0, 1], OVER)
    assert gate.wait_started([0, 1, 3], 0) == [OVER]
    assert not gate.wait([0], 0) and gate.wait_started([0, 2], 0) is None
    gate.settle([0, 1], [])
    assert gate.wait([0, 1], 0) and gate.wait_started([0, 1], 0) == []


def test_a_failed_page_is_not_waited_for() -> None:
    gate = PageGate(4)
    gate.set_loading([0, 1])
    gate.settle([], [0])
    assert not gate.wait([0, 1], 30 * SECOND) and gate.wait_started([0, 1], 30 * SECOND) is None


def test_who_waits_is_woken_by_a_start_and_by_an_end() -> None:
    gate = PageGate(2)
    gate.set_loading([0, 1])
    told: list[bool] = []
    waiting = threading.Thread(
        target=lambda: told.append(gate.wait_started([0], 30 * SECOND) == [OVER])
    )
    waiting.start()
    gate.set_copying([0], OVER)
    waiting.join(30)
    ending = threading.Thread(target=lambda: told.append(gate.wait([0], 30 * SECOND)))
    ending.start()
    gate.settle([0], [])
    ending.join(30)
    assert told == [True, True]
