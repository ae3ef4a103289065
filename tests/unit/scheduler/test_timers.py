"""When a core asks to be woken."""

from services.scheduler.core.base.timers import Timers
from shared.effects import WakeAt


def test_an_instant_is_asked_for_once() -> None:
    timers = Timers()
    assert timers.ask() == []
    timers.at(50, lambda _: None)
    assert timers.ask() == [WakeAt(50)]
    timers.at(60, lambda _: None)
    assert timers.ask() == timers.ask(or_at_ns=55) == []


def test_an_earlier_instant_is_asked_for_again() -> None:
    timers = Timers()
    timers.at(50, lambda _: None)
    timers.ask()
    assert timers.ask(or_at_ns=40) == [WakeAt(40)]
    timers.at(30, lambda _: None)
    assert timers.ask(or_at_ns=40) == [WakeAt(30)]


def test_what_is_still_to_come_is_asked_for_when_woken() -> None:
    timers, rung = Timers(), list[int]()
    timers.at(50, rung.append)
    timers.at(60, rung.append)
    timers.ask()
    timers.run_due(51)
    assert rung == [51]
    assert timers.ask() == [WakeAt(60)]
