"""An attempt's span: what it waited for, what was computed, and how it ended."""

from dataclasses import replace
from typing import Any

import pytest

from services.worker import traces
from services.worker.core.effects import Ended, LayerWait, Prefetched, TurnAccount, TurnTimes
from services.worker.core.step import Sampled, StepResult
from services.worker.traces import TurnTraces
from shared.ids import FrontendId, ModelId, TurnId, WorkerId
from shared.runtime.clock import ManualClock
from shared.tracing import TraceContext
from shared.wire.messages import FinishReason, TurnEnd, TurnStart
from tests.tables import largest_table
from tests.tracing import Tape
from tests.unit.worker.driver import MS, PLAIN_TOKEN, Engine, limited, new_turn, of_kind

TRACE = str(TraceContext(5, 6))


def start(name: str = "t", attempt: int = 1, trace: str = TRACE) -> TurnStart:
    return TurnStart(
        turn_id=TurnId(name),
        attempt=attempt,
        frontend_id=FrontendId("f"),
        model_id=ModelId("m"),
        num_prompt_tokens=3,
        trace=trace,
    )


def ended(
    times: TurnTimes | None, reason: FinishReason = "stop", account: TurnAccount | None = None
) -> Ended:
    return Ended(TurnEnd(turn_id=TurnId("t"), attempt=1, reason=reason), account, times)


def times(**given: Any) -> TurnTimes:
    fields: dict[str, Any] = {
        "arrived_at_ns": 120, "staged_at_ns": 150, "num_staged": 3, "first_step_at_ns": 200,
        "first_token_at_ns": 300, "cached_in": {"disk": 64},
        "waits": (LayerWait(0, 210, 220), LayerWait(1, 310, 330)),
    }  # fmt: skip
    return TurnTimes(**{**fields, **given})


def told(the_end: Ended) -> dict[str, tuple[str, int, int | None]]:
    """By name of each span, its parent's and its times."""
    tape, clock = Tape(), ManualClock(100)
    attempts = TurnTraces(tape, clock, WorkerId("w1"))
    assert attempts.on_start(start()).trace == tape.spans[0].trace != TRACE
    clock.advance(400)
    attempts.on_ended(the_end)
    attempts.on_ended(the_end)  # nothing is left to be told
    names = {span.trace: span.name for span in tape.spans} | {TRACE: ""}
    return {
        span.name + str(span.notes.get("symphony.layer", "")): (
            names[span.parent], span.began_ns, span.ended_ns,
        )
        for span in tape.spans
    }  # fmt: skip


def test_a_whole_attempt() -> None:
    assert told(ended(times())) == {
        "attempt": ("", 100, 500),
        "prompt": ("attempt", 100, 120),
        "queue": ("attempt", 120, 200),
        "history": ("queue", 120, 150),
        "prefill": ("attempt", 200, 300),
        "decode": ("attempt", 300, 500),
        "wait for layer0": ("prefill", 210, 220),
        "wait for layer1": ("decode", 310, 330),
    }


def test_it_is_told_as_far_as_it_came() -> None:
    queued = times(staged_at_ns=None, first_step_at_ns=None, first_token_at_ns=None, waits=())
    assert told(ended(queued, "cancelled")) == {
        "attempt": ("", 100, 500),
        "prompt": ("attempt", 100, 120),
        "queue": ("attempt", 120, 500),
    }
    begun = times(staged_at_ns=None, first_token_at_ns=None)
    assert told(ended(begun, "error"))["prefill"] == ("attempt", 200, 500)
    assert told(ended(None, "error")) == {"attempt": ("", 100, 500)}


def test_how_it_ended_is_told() -> None:
    tape = Tape()
    attempts = TurnTraces(tape, ManualClock(100), WorkerId("w1"))
    attempts.on_start(start())
    account = TurnAccount(request_id="r", num_prompt=3, num_computed=3, num_generated=9)
    attempts.on_ended(ended(None, "error", account))
    (span,) = tape.spans
    assert span.why == "error" and span.notes["gen_ai.usage.output_tokens"] == 9
    assert span.notes["symphony.worker_id"] == "w1" and span.notes["symphony.attempt"] == 1


def test_what_is_not_traced_and_what_comes_again_begin_nothing() -> None:
    tape = Tape()
    attempts = TurnTraces(tape, ManualClock(100), WorkerId("w1"))
    untraced = start(trace="")
    assert attempts.on_start(untraced) is untraced and not tape.spans
    attempts.on_start(start())
    attempts.on_start(start())
    attempts.on_start(start(attempt=2))
    assert len(tape.spans) == 2


def test_attempts_whose_end_is_not_heard_of_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "OPEN_MAX", 4)
    tape = Tape()
    attempts = TurnTraces(tape, ManualClock(100), WorkerId("w1"))
    for number in range(50):
        attempts.on_start(start(str(number)))
    assert largest_table(attempts) == 4
    assert sum(span.ended_ns is not None for span in tape.spans) == 46


def test_a_traced_turn_keeps_what_its_passes_waited_for() -> None:
    engine = Engine()
    traced, untraced = new_turn("t", [1, 2, 3, 4, 5]), new_turn("u", [6, 7, 8])
    traced.trace.context = TRACE
    for turn in (traced, untraced):
        turn.request = replace(turn.request, sampling=limited(2))
        engine.submit(turn)
    stalls: list[dict[int, int]] = [{0: 5, 1: 900_000}, {}]
    the_ends: list[Ended] = []
    for stall_at_ns in stalls:
        plan = engine.plan()
        assert plan is not None and plan.num_rows == 2
        result = StepResult(
            [Sampled(PLAIN_TOKEN)] * 2,
            stall_ns=[1_000, 3 * MS],
            stall_at_ns=stall_at_ns,
            duration_ns=MS,
        )
        engine.now_ns += MS
        the_ends += of_kind(engine.core.on_step(result, engine.now_ns), Ended)
    by_turn = {ended.end.turn_id: ended.times for ended in the_ends}
    times = by_turn[TurnId("t")]
    assert times is not None and by_turn[TurnId("u")] is None
    assert times.waits == (LayerWait(1, 900_000, 900_000 + 3 * MS),), "what is short is no wait"
    assert times.first_step_at_ns == MS and times.first_token_at_ns == 2 * MS
    assert untraced.trace.waits == []


def test_what_was_brought_up_ahead_is_a_part_of_its_advisory() -> None:
    tape, clock = Tape(), ManualClock(100)
    TurnTraces(tape, clock, WorkerId("w1")).on_prefetched(Prefetched(TRACE, 40, 7, 5, "hash"))
    (span,) = tape.spans
    assert (span.name, span.parent, span.began_ns, span.ended_ns) == ("prefetch", TRACE, 40, 100)
    assert span.notes == {
        "symphony.worker_id": "w1", "symphony.of": "adapter",
        "symphony.blocks": 7, "symphony.blocks_here": 5,
    }  # fmt: skip
