"""An advisory's span: from its coming to what became of it."""

import pytest

from services.tracker import traces
from services.tracker.core import EndTrace, Expect, Limits, TrackerCore
from services.tracker.traces import AdvisoryTraces
from shared.ids import ModelId, SessionId, TurnId, WorkerId
from shared.runtime.clock import ManualClock
from shared.tracing import NO_TRACER, TraceContext
from shared.wire.messages import Advisory, AdvisoryKey, TurnArrived
from tests.tracing import Tape

TRACE, OTHER = str(TraceContext(5, 6)), str(TraceContext(7, 8))
W1 = WorkerId("w1")
KEY = AdvisoryKey(session_id=SessionId("s"))


def advisory(trace: str = TRACE, expected_arrival: float | None = None) -> Advisory:
    return Advisory(
        session_id=SessionId("s"),
        model_id=ModelId("m"),
        expected_arrival=expected_arrival,
        agent="qa",
        trace=trace,
    )


def test_it_lasts_until_its_turn_came() -> None:
    tape, clock = Tape(), ManualClock(100)
    hints = AdvisoryTraces(tape, clock)
    followed = hints.on_submit(advisory(expected_arrival=2.5))
    (span,) = tape.spans
    assert followed.trace == span.trace != TRACE == span.parent
    clock.advance(30)
    hints.on_end(followed.trace, "used", W1)
    hints.on_end(followed.trace, "used", W1)  # nothing is left to be told
    assert (span.name, span.began_ns, span.ended_ns) == ("advisory", 100, 130)
    assert span.notes == {
        "gen_ai.conversation.id": "s", "gen_ai.agent.name": "qa",
        "symphony.expected_arrival_s": 2.5, "symphony.outcome": "used",
        "symphony.worker_id": "w1",
    }  # fmt: skip


def test_one_that_is_not_taken_says_why_and_one_that_is_not_traced_nothing() -> None:
    tape = Tape()
    hints = AdvisoryTraces(tape, ManualClock(1))
    hints.on_refused(hints.on_submit(advisory()).trace, "tenant_quota")
    assert hints.on_submit(advisory("")).trace == ""
    (span,) = tape.spans
    assert span.why == "tenant_quota" and span.ended_ns == 1
    unheard = AdvisoryTraces(NO_TRACER, ManualClock())
    assert unheard.on_submit(advisory("anything")).trace == "", "what a stranger says goes nowhere"


def test_those_that_live_for_ever_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "OPEN_MAX", 4)
    tape = Tape()
    hints = AdvisoryTraces(tape, ManualClock(1))
    for _ in range(10):
        hints.on_submit(advisory())
    assert [span.ended_ns for span in tape.spans] == [1] * 6 + [None] * 4


def test_the_core_says_what_became_of_each_that_is_traced() -> None:
    core = TrackerCore(Limits())
    _, effects = core.on_submit(advisory(TRACE), 0)
    (asked,) = [effect.message for effect in effects if isinstance(effect, Expect)]
    assert asked.trace == TRACE
    core.on_placed(KEY, W1, 1)
    _, effects = core.on_submit(advisory(""), 2)
    assert ends(effects) == [], "one that is not traced changes nothing"
    _, effects = core.on_submit(advisory(OTHER), 3)
    assert ends(effects) == [EndTrace(TRACE, "merged", W1)]
    arrived = TurnArrived(
        session_id=SessionId("s"), turn_id=TurnId("t"), worker_id=W1, reserved=True
    )
    assert ends(core.on_turn_arrived(arrived, 4)) == [EndTrace(OTHER, "used", W1)]

    core.on_submit(advisory(TRACE), 5)
    _, effects = core.on_invalidate(KEY, 6)
    assert ends(effects) == [EndTrace(TRACE, "invalidated", None)]
    assert ends(core.on_invalidate(KEY, 7)[1]) == []


def ends(effects: object) -> list[EndTrace]:
    assert isinstance(effects, list)
    return [effect for effect in effects if isinstance(effect, EndTrace)]
