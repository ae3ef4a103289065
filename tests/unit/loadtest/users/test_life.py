"""What one person does: acts in an order that a deployment can make sense of."""

from collections.abc import Iterator
from itertools import pairwise, repeat
from math import isfinite
from random import Random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.users.life import (
    Act,
    Answer,
    ComeBack,
    Habits,
    Hint,
    Leave,
    Said,
    Send,
    TakeBack,
    Wait,
    live,
)

SHARES = st.floats(0.0, 1.0)
TALK = tuple(Said(f"word {number}", 2 + number, 5 + number) for number in range(4))
PLAIN = Habits(
    spread=0.0, thinking_s=1e-9, pauses=0.0, deletes=0.0, abandons=0.0, pastes=0.0, switches=0.0
)
HABITS = st.builds(
    Habits,
    pauses=SHARES,
    deletes=st.floats(0.0, 0.9),
    takes_back=SHARES,
    abandons=st.floats(0.0, 0.3),
    pastes=SHARES,
    hints_paste=SHARES,
    switches=SHARES,
    returns=SHARES,
    num_old_max=st.integers(1, 3),
)


def acts_of(
    habits: Habits, seed: int, num: int, *, hints: bool, answer: Answer | None = None
) -> Iterator[Act]:
    """The first so many acts, with an answer to every turn."""
    acts = live("fox", habits, repeat(TALK), Random(seed), hints=hints)
    told = answer or Answer(30, 300)
    sent: Answer | None = None
    for _ in range(num):
        try:
            act = acts.send(sent)
        except StopIteration:
            return
        sent = told if isinstance(act, Send) else None
        yield act


@settings(max_examples=60, deadline=None)
@given(HABITS, st.integers(0, 999), st.booleans())
def test_acts_make_sense(habits: Habits, seed: int, hints: bool) -> None:
    hinted: set[str] = set()
    sent: dict[str, int] = {}
    acts = list(acts_of(habits, seed, 300, hints=hints))
    for place, act in enumerate(acts):
        if isinstance(act, Wait):
            assert isfinite(act.seconds) and act.seconds >= 0
        elif isinstance(act, Hint):
            assert hints
            assert act.expected_in_s is None or act.expected_in_s >= 0
            hinted.add(act.session)
        elif isinstance(act, TakeBack):
            assert act.session in hinted
            hinted.discard(act.session)
        elif isinstance(act, Send):
            assert act.is_hinted == (act.session in hinted)
            hinted.discard(act.session)
            # A conversation goes on where it was, however often it was put aside.
            assert act.said == TALK[sent.get(act.session, 0)]
            sent[act.session] = sent.get(act.session, 0) + 1
        elif isinstance(act, ComeBack):
            assert 0 < sent[act.session] < len(TALK)
        else:
            assert isinstance(act, Leave)
            assert place == len(acts) - 1


def test_who_leaves_is_gone_without_sending() -> None:
    acts = list(acts_of(Habits(abandons=1.0, pastes=0.0), 1, 50, hints=True))
    assert isinstance(acts[-1], Leave)
    assert not any(isinstance(act, Send) for act in acts)
    assert isinstance(acts[0], Hint)


def test_people_type_and_read_at_their_speeds() -> None:
    seen = []
    for seed in range(200):
        habits = Habits(
            thinking_s=1e-9, pauses=0.0, deletes=0.0, abandons=0.0, pastes=0.0, switches=0.0
        )
        acts = acts_of(habits, seed, 10, hints=False, answer=Answer(4 * 238, 1000))
        waits = [act.seconds for act in acts if isinstance(act, Wait)]
        seen.append((waits[0] / TALK[0].num_words * 52, waits[1]))
    assert median(typing for typing, _ in seen) == pytest.approx(60, rel=0.1)
    assert median(reading for _, reading in seen) == pytest.approx(3 * 60, rel=0.1)


def test_a_keystroke_comes_as_long_before_as_typing_takes() -> None:
    first, second, third = list(acts_of(PLAIN, 1, 3, hints=True))
    assert first == Hint("fox/0", None)
    assert isinstance(second, Wait)
    assert second.seconds == pytest.approx(TALK[0].num_words / 52 * 60)
    assert third == Send("fox/0", TALK[0], True)


def test_what_is_pasted_is_hinted_with_the_paste_or_not_at_all() -> None:
    habits = Habits(pastes=1.0, hints_paste=0.5, abandons=0.0)
    acts = list(acts_of(habits, 1, 400, hints=True))
    sends = [act for act in acts if isinstance(act, Send)]
    assert {act.is_hinted for act in sends} == {True, False}
    for before, act in pairwise(acts):
        if isinstance(act, Send) and act.is_hinted:
            assert before == Hint(act.session, 0.0)


def test_people_come_back_to_what_they_put_aside() -> None:
    acts = list(acts_of(Habits(switches=0.9, returns=0.5, abandons=0.0), 3, 400, hints=True))
    assert sum(isinstance(act, ComeBack) for act in acts) > 5


@pytest.mark.parametrize("answer", [Answer(5, 100, is_whole=False), Answer(5, 100_000)])
def test_a_broken_or_full_conversation_is_not_gone_on_with(answer: Answer) -> None:
    acts = acts_of(PLAIN, 1, 40, hints=False, answer=answer)
    sends = [act for act in acts if isinstance(act, Send)]
    assert len({act.session for act in sends}) == len(sends) > 1
