"""A placement's span: from the turn's coming to its sending."""

from typing import Any

from services.scheduler import traces
from services.scheduler.traces import PlacementTraces
from shared.ids import FrontendId, ModelId, SessionId, TurnId, WorkerId
from shared.runtime.clock import ManualClock
from shared.tracing import TraceContext
from shared.wire.messages import ExpectSession, SessionPlacement, TurnsSubmit, TurnSubmit, start_of
from tests.tables import largest_table
from tests.tracing import Tape

TRACE = str(TraceContext(5, 6))
W1 = WorkerId("w1")


def submit(name: str, trace: str = TRACE) -> TurnSubmit:
    return TurnSubmit(
        turn_id=TurnId(name),
        frontend_id=FrontendId("f"),
        model_id=ModelId("m"),
        num_prompt_tokens=1,
        trace=trace,
    )


def test_it_lasts_from_the_first_coming_to_the_sending() -> None:
    tape, clock = Tape(), ManualClock(10)
    placements = PlacementTraces(tape, clock)
    placements.on_submits(TurnsSubmit(turns=[submit("a"), submit("b", "")]))
    clock.advance(5)
    placements.on_submits(TurnsSubmit(turns=[submit("a")]))  # again
    clock.advance(5)
    placements.on_started(W1, start_of(submit("a"), 1), "history")
    placements.on_started(W1, start_of(submit("b", ""), 1), "history")
    clock.advance(100)
    placements.on_started(W1, start_of(submit("a"), 2), "lost")
    assert [(span.name, span.parent, span.began_ns, span.ended_ns) for span in tape.spans] == [
        ("place", TRACE, 10, 20),
        ("place", TRACE, 120, 120),
    ]
    assert tape.spans[1].notes == {
        "symphony.worker_id": "w1", "symphony.attempt": 2, "symphony.placement": "lost",
    }  # fmt: skip


def test_turns_that_never_get_a_place_are_forgotten(monkeypatch: Any) -> None:
    monkeypatch.setattr(traces, "WAITING_MAX", 8)
    placements = PlacementTraces(Tape(), ManualClock())
    for number in range(100):
        placements.on_submits(TurnsSubmit(turns=[submit(str(number))]))
    assert largest_table(placements) == 8


def test_a_place_that_is_kept_is_told_and_that_there_is_none() -> None:
    tape, clock = Tape(), ManualClock(10)
    placements = PlacementTraces(tape, clock)
    expected = ExpectSession(session_id=SessionId("s"), trace=TRACE)
    clock.advance(5)
    placements.on_expected(expected, SessionPlacement(worker_id=W1), 10)
    placements.on_expected(expected, SessionPlacement(), 12)
    placements.on_expected(ExpectSession(session_id=SessionId("s")), SessionPlacement(), 12)
    assert [(span.name, span.parent, span.began_ns, span.ended_ns) for span in tape.spans] == [
        ("reserve", TRACE, 10, 15),
        ("reserve", TRACE, 12, 15),
    ]
    assert [span.notes for span in tape.spans] == [{"symphony.worker_id": "w1"}, {}]
