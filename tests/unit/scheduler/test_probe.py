"""Whose silence means that a worker is gone."""

import asyncio
import math
from functools import partial
from typing import cast

import pytest

from services.scheduler.consume import RETURN_S, probe
from shared.bus import Bus
from shared.ids import WorkerId
from shared.runtime.events import EventQueue


class StubBus:
    """Is back for so long when asked first, and then when asked again; whether anybody answers."""

    def __init__(self, *steady_for_s: float, is_there: bool) -> None:
        self._steady_for_s = iter(steady_for_s)
        self._is_there = is_there

    @property
    def steady_for_s(self) -> float:
        return next(self._steady_for_s)

    async def has_responder(self, *_: object, timeout_s: float) -> bool:
        return self._is_there


class WorkerChange(list[WorkerId]):
    """What a core is told."""

    def put(self, event: object) -> bool:
        assert isinstance(event, partial)
        self.append(event.args[0])
        return True


def on_gone(_: WorkerId, __: int) -> list[object]:
    return []


@pytest.mark.parametrize(
    ("before_s", "after_s", "is_there", "is_gone"),
    [
        (60.0, 60.1, False, True),
        (math.inf, math.inf, False, True),  # it never was away
        (60.0, 60.1, True, False),
        (60.0, 0.0, False, False),  # the bus is away: nobody can answer
        (60.0, 0.5, False, False),  # it was: the worker is perhaps not back yet
        (0.5 * RETURN_S, RETURN_S, False, False),
        (RETURN_S, RETURN_S + 0.1, False, True),
    ],
)
def test_nobody_is_gone_because_the_bus_was(
    before_s: float, after_s: float, is_there: bool, is_gone: bool
) -> None:
    heard = WorkerChange()
    bus = cast(Bus, StubBus(before_s, after_s, is_there=is_there))
    events = cast("EventQueue[object]", heard)
    asyncio.run(probe(bus, WorkerId("w"), events, on_gone))
    assert heard == ([WorkerId("w")] if is_gone else [])
