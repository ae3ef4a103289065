"""The announcer's decisions, without its thread: what waits, what is worth saying, how long to
leave a frontend alone.
"""

from hypothesis import given
from hypothesis import strategies as st

from symphony_client import Advisory
from symphony_client.core.announced import MARGIN_S, SLACK_S, UNSAID_S, Announced
from symphony_client.core.backoff import ASKED_MAX_S, FIRST_S, LONGEST_S, SPREAD, Backoff
from symphony_client.core.pending import STALE_S, Pending

NUM_MAX = 100


def hint(session_id: str = "s", expected_arrival: float | None = None) -> Advisory:
    return Advisory(session_id=session_id, expected_arrival=expected_arrival)


def sessions(pending: Pending, now_s: float) -> list[str]:
    return [order.session_id for order in pending.due(now_s, NUM_MAX)]


def test_a_hint_waits_a_moment_and_its_arrival_comes_nearer() -> None:
    pending = Pending(linger_s=1.0, waiting_max=9)
    pending.announce(hint(expected_arrival=10.0), 5.0)
    assert pending.next_at_s() == 6.0
    assert pending.due(5.9, NUM_MAX) == []
    (order,) = pending.due(8.0, NUM_MAX)
    assert order.advisory == hint(expected_arrival=7.0)


def test_always_news_of_a_session_does_not_keep_it_waiting() -> None:
    pending = Pending(linger_s=1.0, waiting_max=9)
    for tenth in range(11):
        pending.announce(hint(expected_arrival=tenth), tenth / 10)
    (order,) = pending.due(1.0, NUM_MAX)
    assert order.advisory is not None and order.advisory.expected_arrival == 10.0


def test_a_hint_in_place_of_one_taken_back_waits_a_moment_of_its_own() -> None:
    pending = Pending(linger_s=1.0, waiting_max=9)
    pending.announce(hint(), 0.0)
    pending.take_back("s", 0.5)
    assert pending.next_at_s() == 0.5
    pending.announce(hint(), 0.5)
    assert pending.next_at_s() == 1.5


def test_one_of_a_session_goes_at_a_time() -> None:
    pending = Pending(linger_s=0.0, waiting_max=9)
    pending.announce(hint(), 0.0)
    assert sessions(pending, 0.0) == ["s"]
    pending.take_back("s", 0.0)
    assert sessions(pending, 0.0) == []
    assert pending.next_at_s() == STALE_S  # nothing to do before, unless it is answered
    pending.done("s")
    (order,) = pending.due(0.0, NUM_MAX)
    assert order.advisory is None


def test_what_waited_too_long_is_not_sent() -> None:
    pending = Pending(linger_s=0.0, waiting_max=9)
    pending.announce(hint("unsaid"), 0.0)
    pending.announce(hint("far", 60.0), 0.0)
    assert pending.due(STALE_S, 0) == [] and pending.num_waiting == 1
    assert sessions(pending, 60.0) == ["far"]
    assert pending.counts.stale == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["announce", "take back", "withdraw", "send", "done"]),
            st.integers(0, 5),
            st.floats(0.0, 2.0),
        )
    )
)
def test_nothing_is_lost_uncounted(events: list[tuple[str, int, float]]) -> None:
    pending = Pending(linger_s=0.5, waiting_max=3)
    now_s, num_sent = 0.0, 0
    going: set[str] = set()
    for kind, number, pause_s in events:
        now_s += pause_s
        session_id = str(number)
        if kind == "announce":
            pending.announce(hint(session_id, pause_s), now_s)
        elif kind == "take back":
            pending.take_back(session_id, now_s)
        elif kind == "withdraw":
            pending.withdraw(session_id)
        elif kind == "done":
            pending.done(session_id)
            going.discard(session_id)
        else:
            for order in pending.due(now_s, 2):
                assert order.session_id not in going
                going.add(order.session_id)
                num_sent += 1
        counts = pending.counts
        gone = counts.merged + counts.withdrawn + counts.dropped + counts.stale + num_sent
        assert counts.taken == gone + pending.num_waiting
        assert pending.num_waiting <= 3 and pending.num_going == len(going)


def test_a_turn_is_announced_once_unless_it_comes_sooner_or_much_later() -> None:
    announced = Announced()
    assert announced.say("s", 10.0, 0.0)
    assert not announced.say("s", 10.0, 0.0)
    assert not announced.say("s", None, 0.0)
    assert not announced.say("s", 9.0, 0.0)  # by too little
    assert not announced.say("s", 20.0, 0.0)  # it is awaited until 40
    assert announced.say("s", 11.0 + SLACK_S, 0.0)
    assert announced.say("s", 1.0, 0.0)
    assert not announced.say("s", 1.0 - MARGIN_S, 0.0)
    assert announced.say("other", 10.0, 0.0)
    assert announced.forget("s") and not announced.forget("s")
    assert announced.say("s", 1.0, 0.0)


def test_a_turn_announced_for_no_instant_is_awaited_for_a_minute() -> None:
    announced = Announced()
    assert announced.say("s", None, 0.0)
    assert not announced.say("s", 5.0, 1.0)
    assert announced.is_said("s", UNSAID_S - 1) and not announced.is_said("s", UNSAID_S)
    assert announced.say("s", None, UNSAID_S)


def test_what_was_announced_is_bounded() -> None:
    announced = Announced(sessions_max=2)
    for session_id in "abc":
        announced.say(session_id, 1.0, 0.0)
    assert len(announced) == 2 and not announced.is_said("a", 0.0)


def test_pauses_double_and_end_with_the_first_success() -> None:
    backoff = Backoff(lambda: 0.0)
    now_s, pauses = 0.0, []
    for _ in range(10):
        pauses.append(backoff.on_failure(now_s))
        now_s += pauses[-1]
        assert backoff.is_away and backoff.wait_s(now_s) == 0
    assert pauses[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S] and pauses[-1] == LONGEST_S
    backoff.on_success()
    assert not backoff.is_away
    assert backoff.on_failure(now_s) == FIRST_S


def test_what_fails_together_counts_once() -> None:
    backoff = Backoff(lambda: 0.0)
    assert [backoff.on_failure(0.0) for _ in range(8)] == [FIRST_S] * 8


@given(st.floats(0.0, 1e6), st.floats(0.0, 0.999))
def test_a_deployment_is_left_alone_for_as_long_as_it_asks(asked_s: float, chance: float) -> None:
    backoff = Backoff(lambda: chance)
    pause_s = backoff.on_failure(100.0, asked_s)
    assert min(asked_s, ASKED_MAX_S) - 1e-6 <= pause_s
    assert pause_s <= max(min(asked_s, ASKED_MAX_S), FIRST_S) + 1e-6
    assert pause_s >= FIRST_S * (1 - SPREAD) - 1e-6
