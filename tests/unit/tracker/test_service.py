"""What a tracker's shell says of itself."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from services.tracker.config import TrackerConfig
from services.tracker.service import TrackerService
from shared.ids import SessionId, TurnId
from shared.runtime.clock import SystemClock
from shared.tracing import NO_TRACER
from shared.wire.messages import TurnArrived


@pytest.mark.parametrize("is_leading", [False, True])
def test_a_spare_does_not_log_each_turn_too(
    caplog: pytest.LogCaptureFixture, is_leading: bool
) -> None:
    runtime: Any = SimpleNamespace(bus=None, clock=SystemClock(), tracer=NO_TRACER, parts={})
    service = TrackerService(runtime, TrackerConfig())
    service._is_leading = is_leading
    with caplog.at_level(logging.INFO):
        service._turn_arrived(TurnArrived(session_id=SessionId("s"), turn_id=TurnId("t")))
    assert [each.message for each in caplog.records] == ["turn arrived"] * is_leading
