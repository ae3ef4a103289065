"""How long a client is waited for: long enough for who goes on, and never for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.frontend.core.http.client_timeouts import (
    BODY_BYTES_PER_S,
    ClientTimeouts,
    ResponsiveClock,
    TimeoutLimits,
)

LIMITS = TimeoutLimits(request_s=30.0, reader_s=30.0)


def opened() -> ClientTimeouts:
    return ClientTimeouts(LIMITS, 0.0)


def asked(patience: ClientTimeouts, now_s: float, *, with_body: bool = False) -> None:
    """A whole head, and its whole request if no body follows."""
    patience.on_bytes(now_s)
    patience.on_begin(now_s)
    patience.on_head(now_s)
    if not with_body:
        patience.on_request_end()


def test_who_opens_and_says_nothing() -> None:
    assert opened().awaits_too_long(29.9) is None
    assert opened().awaits_too_long(30.0) == "head"


def test_a_head_is_not_saved_by_its_trickle() -> None:
    patience = opened()
    patience.on_bytes(20.0)
    patience.on_begin(20.0)
    for second in range(21, 50):
        patience.on_bytes(float(second))
        assert patience.awaits_too_long(float(second)) is None
    assert patience.awaits_too_long(50.0) == "head"


def test_line_breaks_are_no_request() -> None:
    patience = opened()
    asked(patience, 0.0)
    patience.on_answered(1.0)
    assert patience.awaits_too_long(1_000.0) is None  # keep-alive has its own end
    for second in range(100, 130):
        patience.on_bytes(float(second))
    assert patience.awaits_too_long(130.0) == "head"


def test_a_body_that_stops_and_one_that_trickles() -> None:
    stops, trickles = opened(), opened()
    for patience in (stops, trickles):
        asked(patience, 0.0, with_body=True)
    stops.on_bytes(1.0)
    stops.on_body(10_000_000, 1.0)
    assert stops.awaits_too_long(30.9) is None
    assert stops.awaits_too_long(31.0) == "body"
    trickles.on_bytes(29.0)
    trickles.on_body(1, 29.0)
    assert trickles.awaits_too_long(29.9) is None
    assert trickles.awaits_too_long(30.1) == "body"


def test_a_fast_start_buys_no_slow_end() -> None:
    patience = opened()
    asked(patience, 0.0, with_body=True)
    patience.on_body(19_000_000, 1.0)
    for second in range(2, 31):
        patience.on_body(1, float(second))
        assert patience.awaits_too_long(float(second)) is None
    assert patience.awaits_too_long(31.1) == "body"


@given(st.floats(1.0, 20.0), st.integers(1, 300))
def test_a_body_at_the_slowest_rate_is_waited_for(step_s: float, num_steps: int) -> None:
    patience = opened()
    asked(patience, 0.0, with_body=True)
    for step in range(1, num_steps + 1):
        assert patience.awaits_too_long(step * step_s) is None
        patience.on_bytes(step * step_s)
        patience.on_body(int(step_s * BODY_BYTES_PER_S) + 1, step * step_s)
    patience.on_request_end()
    assert patience.awaits_too_long(1e9) is None  # it is our turn


def test_what_follows_a_refused_body_has_an_end_too() -> None:
    patience = opened()
    asked(patience, 0.0, with_body=True)
    patience.on_answered(5.0)
    for second in range(6, 35):
        patience.on_bytes(float(second))
        patience.on_body(1_000_000, float(second))
        assert patience.awaits_too_long(float(second)) is None
    assert patience.awaits_too_long(35.0) == "body"


@pytest.mark.parametrize("is_whole", [False, True])
def test_the_next_request_waits_while_the_first_is_answered(is_whole: bool) -> None:
    patience = opened()
    asked(patience, 0.0)
    patience.on_bytes(1.0)
    patience.on_begin(1.0)
    if is_whole:  # but for its body
        patience.on_head(1.0)
    assert patience.awaits_too_long(500.0) is None  # not read any further until then
    patience.on_answered(500.0)
    assert patience.awaits_too_long(529.9) is None
    assert patience.awaits_too_long(530.0) == ("body" if is_whole else "head")


def test_a_reader_that_takes_nothing() -> None:
    patience = opened()
    assert not patience.is_unread_too_long(100, 10.0)
    assert not patience.is_unread_too_long(100, 39.9)
    assert patience.is_unread_too_long(100, 40.0)
    patience.on_all_sent()
    assert not patience.is_unread_too_long(100, 1_000.0)


@given(st.lists(st.floats(0.0, 29.0), max_size=50))
def test_a_slow_reader_is_no_stuck_one(pauses_s: list[float]) -> None:
    patience, now_s = opened(), 0.0
    for num_acked, pause_s in enumerate(pauses_s):
        now_s += pause_s
        assert not patience.is_unread_too_long(num_acked, now_s)


@given(
    st.lists(
        st.tuples(st.sampled_from(["bytes", "head", "end", "answered"]), st.floats(0.0, 100.0)),
        max_size=30,
    )
)
def test_whatever_happens_what_is_awaited_is_not_awaited_for_ever(
    events: list[tuple[str, float]],
) -> None:
    """Unless it is our turn, or nothing was asked."""
    patience, now_s = opened(), 0.0
    phase = "head"
    bodies_complete: list[bool] = []  # of requests without an answer, the oldest first
    for kind, pause_s in events:
        now_s += pause_s
        if kind == "answered":
            if bodies_complete:
                patience.on_answered(now_s)
                bodies_complete.pop(0)
            continue
        patience.on_bytes(now_s)
        phase = "head" if phase == "between" else phase
        if kind == "head" and phase == "head":
            patience.on_begin(now_s)
            patience.on_head(now_s)
            phase = "body"
            bodies_complete.append(False)
        elif kind == "end" and phase == "body":
            patience.on_request_end()
            phase = "between"
            if bodies_complete and not bodies_complete[-1]:
                bodies_complete[-1] = True
    is_ours = any(bodies_complete)
    expected = phase if phase != "between" and not is_ours else None
    assert patience.awaits_too_long(now_s + 31.0) == expected


def test_our_own_standstill_is_nobody_elses() -> None:
    clock = ResponsiveClock(1.0, 100.0)
    for second in range(101, 111):
        clock.on_tick(float(second))
    assert clock.responsive_s(110.0) == 110.0
    clock.on_tick(150.0)  # 39 s late
    assert clock.responsive_s(150.0) == 111.0
    clock.on_tick(151.5)  # a little late: busy
    assert clock.responsive_s(151.5) == 112.5
