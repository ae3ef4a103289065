"""The lease's core, event by event."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.effects import WakeAt
from shared.lease.core.core import LeaseCore
from shared.lease.core.effects import (
    Announce,
    AskHolder,
    Lead,
    LeaseEffect,
    Lost,
    ReadLease,
    Released,
    Resume,
    Stored,
    Suspend,
    WriteLease,
)
from shared.lease.core.times import LeaseTimes
from shared.wire.messages import LeaderLease

BEAT, TTL = 80, 250  # small numbers: the core does not care what a nanosecond is
TIMES = LeaseTimes(beat_ns=BEAT, ttl_ns=TTL)
PATIENCE = TIMES.patience_ns
WALL_MS = 1_000_000
EMPTY = Stored(None, 0)


def lease(instance: str = "other", fence: int = 7, beat: int = 0) -> LeaderLease:
    return LeaderLease(instance=instance, fence=fence, beat=beat)


def new_core() -> LeaseCore:
    return LeaseCore(instance="me", times=TIMES, wall_offset_ms=WALL_MS)


def spare(known: Stored) -> LeaseCore:
    """One that has read `known` at 0."""
    core = new_core()
    assert core.on_wake(0) == [ReadLease()]
    core.on_read(known, 0)
    return core


def leader(fence: int = 8, revision: int = 20) -> LeaseCore:
    """One that took a released lease by a write sent at 0 and stored at 1."""
    core = new_core()
    core.on_wake(0)
    free = Stored(lease("", fence - 1), revision - 1)
    assert core.on_read(free, 0) == [WriteLease(revision - 1, lease("me", fence))]
    effects = core.on_written(revision, 1)
    assert Lead(fence) in effects and core.is_leading(1)
    return core


def of_kind(effects: list[LeaseEffect], *kinds: type[LeaseEffect]) -> list[LeaseEffect]:
    return [effect for effect in effects if isinstance(effect, kinds)]


def answer_read(core: LeaseCore, stored: Stored, now_ns: int) -> list[LeaseEffect]:
    """Answer its read of the lease, if it waits for one."""
    return core.on_read(stored, now_ns) if isinstance(core._asked, ReadLease) else []


def test_a_leader_s_patience_ends_before_a_spare_s() -> None:
    assert 2 * BEAT < PATIENCE < TTL
    with pytest.raises(AssertionError):
        LeaseTimes(beat_ns=100, ttl_ns=250)


@pytest.mark.parametrize("known", [EMPTY, Stored(None, 5), Stored(lease(), 12)])
def test_a_spare_waits_for_its_ttl_and_looks_meanwhile(known: Stored) -> None:
    """Also where there is no lease: the store may have forgotten a living holder's."""
    core = spare(known)
    assert ReadLease() in core.on_wake(TIMES.look_ns)
    core.on_read(known, TIMES.look_ns + 1)
    assert not of_kind(core.on_wake(TTL - 1), WriteLease)
    answer_read(core, known, TTL - 1)
    [write] = of_kind(core.on_wake(TTL), WriteLease)
    assert isinstance(write, WriteLease)
    assert write.expected_revision == known.revision
    assert write.lease.fence == (8 if known.lease else WALL_MS)


def test_word_of_a_renewal_begins_the_patience_anew_once() -> None:
    core = spare(Stored(lease(), 12))
    news = Stored(lease(beat=1), 13)
    assert core.on_announced(news, 100) == [WakeAt(100 + TIMES.look_ns)]
    core.on_announced(news, 150)  # doubled
    core.on_announced(Stored(lease(), 12), 160)  # late
    core.on_wake(100 + TIMES.look_ns)
    core.on_read(news, 230)
    core.on_wake(349)
    answer_read(core, news, 349)
    assert core.on_wake(350) == [WriteLease(13, lease("me", 8))]


def test_an_answer_older_than_the_word_is_ignored() -> None:
    core = spare(Stored(lease(), 12))
    assert ReadLease() in core.on_wake(TIMES.look_ns)
    core.on_announced(Stored(lease(beat=1), 13), 130)
    assert core.on_read(Stored(lease(), 12), 140) == [WakeAt(140 + TIMES.look_ns)]
    assert ReadLease() in core.on_wake(140 + TIMES.look_ns)
    core.on_read(Stored(lease(beat=1), 13), 379)
    assert core.on_wake(380) == [WriteLease(13, lease("me", 8))]


def test_a_spare_that_comes_too_late_reads_and_waits_again() -> None:
    core = spare(Stored(lease("", 7), 12))  # it wrote at once
    assert core.on_conflict(3) == [ReadLease()]
    effects = core.on_read(Stored(lease("third", 8), 13), 5)
    assert effects == [AskHolder(), WakeAt(5 + TIMES.look_ns)]
    assert not core.is_leading(5)


def test_a_takeover_without_an_answer_is_found_in_the_store() -> None:
    core = spare(Stored(lease("", 7), 12))
    assert core.on_no_answer(80) == [ReadLease()]
    [write] = core.on_read(Stored(lease("me", 8), 13), 82)
    assert write == WriteLease(13, lease("me", 8, beat=1))
    assert Lead(8) in core.on_written(14, 84)


def test_who_hears_late_that_it_holds_the_lease_looks_first() -> None:
    """Until it leads no spare finds it, and one may have taken over."""
    assert TIMES.lead_by_ns < TIMES.return_ns < PATIENCE
    core = spare(Stored(lease("", 7), 12))
    effects = core.on_written(13, TIMES.lead_by_ns)
    assert of_kind(effects, Lead, ReadLease) == [ReadLease()]
    assert not core.is_leading(TIMES.lead_by_ns)
    now_ns = TIMES.lead_by_ns + 1
    [write] = core.on_read(Stored(lease("me", 8), 13), now_ns)
    assert isinstance(write, WriteLease)
    effects = core.on_written(14, now_ns + TIMES.lead_by_ns - 1)
    assert Lead(8) in effects, "it was in time now"


def test_a_leader_may_hear_late_of_its_renewals() -> None:
    core = leader()
    core.on_wake(BEAT)
    core.on_written(21, BEAT + TIMES.lead_by_ns)
    assert core.is_leading(BEAT + TIMES.lead_by_ns)


def test_a_takeover_that_was_confirmed_too_late_is_no_lead() -> None:
    core = spare(Stored(lease("", 7), 12))
    effects = core.on_written(13, PATIENCE)
    assert of_kind(effects, Lead, Suspend, ReadLease) == [ReadLease()]
    core.on_read(Stored(lease("other", 9), 14), PATIENCE + 1)
    freed = core.on_announced(Stored(lease("", 9), 15), PATIENCE + 2)
    assert freed == [WriteLease(15, lease("me", 10))], "it is a spare again"


def test_a_spare_waits_anew_after_the_store_was_away() -> None:
    core = spare(Stored(lease(), 12))
    core.on_wake(TIMES.look_ns)
    assert core.on_no_answer(200) == [ReadLease()]
    assert core.on_read(Stored(lease(), 12), 1000) == [WakeAt(1000 + TIMES.look_ns)]


def test_the_leader_renews_every_beat_from_the_sending() -> None:
    core = leader()
    assert core.on_wake(BEAT - 1) == [WakeAt(BEAT)]
    assert core.on_wake(BEAT) == [WriteLease(20, lease("me", 8, 1)), WakeAt(PATIENCE)]
    effects = core.on_written(21, BEAT + 30)
    assert effects == [Announce(Stored(lease("me", 8, 1), 21)), WakeAt(2 * BEAT)]
    assert core.is_leading(BEAT + PATIENCE - 1)
    assert not core.is_leading(BEAT + PATIENCE), "belief counts from the sending"


def test_the_leader_suspends_and_resumes_when_nobody_took_over() -> None:
    core = leader()
    core.on_wake(BEAT)
    assert core.on_no_answer(160) == [ReadLease(), WakeAt(PATIENCE)]
    assert core.on_wake(PATIENCE) == [Suspend()]
    assert core.on_no_answer(240) == [ReadLease()]
    assert core.on_read(Stored(lease("me", 8), 20), 500) == [WriteLease(20, lease("me", 8, 1))]
    assert not core.is_leading(500)
    assert of_kind(core.on_written(21, 501), Lead, Resume) == [Resume()]
    assert core.is_leading(501)


def test_a_leader_that_stood_still_looks_before_it_writes() -> None:
    core = leader()
    assert not core.is_leading(5000), "even before anything wakes it"
    assert core.on_wake(5000) == [Suspend(), ReadLease()]
    assert core.on_read(Stored(lease("other", 9), 40), 5001) == [Lost()]
    assert core.on_wake(9999) == [] and not core.is_leading(5001)


def test_an_answer_that_took_too_long_proves_nothing() -> None:
    core = leader()
    core.on_wake(BEAT)
    effects = core.on_written(21, BEAT + PATIENCE)
    assert of_kind(effects, Suspend, ReadLease) == [Suspend(), ReadLease()]


def test_word_of_another_leader_is_checked_in_the_store() -> None:
    core = leader()
    assert core.on_announced(Stored(lease("other", 7), 18), 10) == [WakeAt(BEAT)]
    assert ReadLease() in core.on_announced(Stored(lease("other", 9), 30), 11)
    assert core.on_read(Stored(lease("other", 9), 30), 12) == [Lost()]


def test_a_forgotten_lease_becomes_a_new_term() -> None:
    core = leader()
    core.on_wake(BEAT)
    assert ReadLease() in core.on_conflict(81)
    [write, _] = core.on_read(EMPTY, 82)
    assert write == WriteLease(0, lease("me", WALL_MS))
    assert core.is_leading(83) and Lead(WALL_MS) in core.on_written(1, 83)
    assert WriteLease(1, lease("me", WALL_MS, 1)) in core.on_wake(82 + BEAT)


def test_a_raised_fence_is_led_under_once_it_is_stored() -> None:
    core = leader()
    assert core.raise_fence(8, 5) == [WakeAt(BEAT)]  # its own
    assert core.raise_fence(4, 5) == [WakeAt(BEAT)]  # an old one
    assert WriteLease(20, lease("me", 12)) in core.raise_fence(11, 6)
    assert Lead(12) in core.on_written(21, 7)


def test_a_spare_remembers_a_raised_fence() -> None:
    core = spare(Stored(lease(), 12))
    core.raise_fence(30, 1)
    assert core.on_announced(Stored(lease("", 7), 13), 2) == [WriteLease(13, lease("me", 31))]


def test_a_release_keeps_the_fence_and_stops_at_once() -> None:
    core = leader()
    assert core.release(5) == [WriteLease(20, lease("", 8, 1))]
    assert not core.is_leading(5)
    given_back = Announce(Stored(lease("", 8, 1), 21))
    assert core.on_written(21, 6) == [given_back, Released()]


def test_a_release_waits_for_the_renewal_under_way() -> None:
    core = leader()
    core.on_wake(BEAT)
    assert not of_kind(core.release(81), WriteLease, Released)
    effects = core.on_written(21, 82)
    assert of_kind(effects, WriteLease, Lead, Resume) == [WriteLease(21, lease("", 8, 2))]
    assert core.on_no_answer(170) == [ReadLease()]
    assert core.on_read(Stored(lease("", 8, 2), 22), 171) == [Released()]


def test_a_spare_just_leaves() -> None:
    assert spare(Stored(lease(), 12)).release(5) == [Released()]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 150)), max_size=60))
def test_whatever_happens_one_question_at_a_time_and_growing_fences(
    happenings: list[tuple[int, int]],
) -> None:
    """Against a store that now and then loses a question or an answer, or is written by others."""
    core, now_ns, stored = new_core(), 0, EMPTY
    asked: ReadLease | WriteLease | None = None
    told: list[int] = []

    def take(effects: list[LeaseEffect]) -> None:
        nonlocal asked
        for effect in effects:
            if isinstance(effect, ReadLease | WriteLease):
                assert asked is None
                asked = effect
            elif isinstance(effect, Lead):
                told.append(effect.fence)

    for kind, wait_ns in happenings:
        now_ns += wait_ns
        question = asked
        if question is None or kind == 6:
            take(core.on_wake(now_ns))
            continue
        asked = None
        is_match = isinstance(question, WriteLease) and (
            question.expected_revision == stored.revision
        )
        if isinstance(question, WriteLease) and is_match and kind != 4:
            stored = Stored(question.lease, stored.revision + 1)
        if kind in (3, 4):  # the answer was lost, or the question
            take(core.on_no_answer(now_ns))
        elif isinstance(question, ReadLease):
            take(core.on_read(stored, now_ns))
        elif is_match:
            take(core.on_written(stored.revision, now_ns))
        else:
            take(core.on_conflict(now_ns))
        if kind == 5 and stored.lease is not None:  # another takes it
            stored = Stored(lease("other", stored.lease.fence + 1), stored.revision + 1)
        assert told or not core.is_leading(now_ns)
    assert told == sorted(set(told))


def ask(core: LeaseCore, holder: str | None, now_ns: int) -> list[LeaseEffect]:
    """Let the spare ask its next question at `now_ns`, and answer it."""
    effects = [] if core._watch._is_asking else core.on_wake(now_ns)
    return effects + core.on_holder(holder, now_ns)


def test_a_holder_that_was_heard_and_is_gone_is_followed_at_once() -> None:
    core = spare(Stored(lease(), 12))
    ask(core, "other", 0)
    assert not of_kind(ask(core, None, 20), WriteLease), "it may be renewing its subscription"
    assert of_kind(ask(core, None, 40), WriteLease) == [WriteLease(12, lease("me", 8))]


def test_a_holder_that_was_never_heard_is_given_time_to_come_back() -> None:
    core = spare(Stored(lease(), 12))
    for now_ns in range(0, TIMES.return_ns + 1, 25):
        effects = ask(core, None, now_ns)
        effects += answer_read(core, Stored(lease(), 12), now_ns)
        assert bool(of_kind(effects, WriteLease)) == (now_ns >= TIMES.return_ns)


@pytest.mark.parametrize("doubt", ["news", "another", "silence", "cut"])
def test_what_makes_a_gone_holder_doubtful(doubt: str) -> None:
    core = spare(Stored(lease(), 12))
    ask(core, "other", 0)
    ask(core, None, 20)
    if doubt == "news":
        core.on_announced(Stored(lease(beat=1), 13), 25)
    elif doubt == "another":
        ask(core, "third", 40)
    elif doubt == "silence":
        core.on_wake(40)
        core.on_holder_silent(45)
    else:
        core.on_cut(25)
    assert not of_kind(ask(core, None, 65), WriteLease)
    assert bool(of_kind(ask(core, None, 85), WriteLease)) == (doubt != "cut")


def test_the_first_of_all_leads_at_once() -> None:
    core = spare(EMPTY)
    ask(core, None, 0)
    assert of_kind(ask(core, None, 20), WriteLease)


def test_a_spare_that_stood_still_blames_nobody() -> None:
    core = spare(Stored(lease(), 12))
    ask(core, "other", 0)
    ask(core, None, 20)
    assert not of_kind(core.on_wake(3 * TTL), WriteLease), "its patience begins anew"
    assert not of_kind(core.on_holder(None, 3 * TTL), WriteLease)


def test_a_standstill_is_noticed_while_answers_are_under_way() -> None:
    core = spare(Stored(lease(), 12))
    ask(core, "other", TIMES.look_ns - 10)
    assert ReadLease() in core.on_wake(TIMES.look_ns)
    assert AskHolder() in core.on_wake(TIMES.look_ns + 10)
    assert not of_kind(core.on_read(Stored(lease(), 12), 3 * TTL), WriteLease)


def test_a_spare_that_is_always_late_takes_over_in_the_end() -> None:
    """Patience begins anew once between two words of the holder."""
    core = spare(Stored(lease(), 12))
    for number in range(1, 20):
        now_ns = number * (2 * BEAT)
        effects = core.on_wake(now_ns)
        if of_kind(effects, ReadLease):
            effects += core.on_read(Stored(lease(), 12), now_ns)
        if of_kind(effects, WriteLease):
            break
    assert TTL <= now_ns <= 3 * TTL


def test_a_leader_without_a_connection_stops_and_looks_before_it_goes_on() -> None:
    core = leader(fence=8, revision=20)
    assert of_kind(core.on_cut(10), Suspend, ReadLease) == [Suspend(), ReadLease()]
    assert not core.is_leading(10)
    assert of_kind(core.on_read(Stored(lease("me", 8), 20), 30), WriteLease)
    assert Resume() in core.on_written(21, 31) and core.is_leading(31)


def test_an_answer_from_before_the_cut_proves_nothing() -> None:
    core = leader(fence=8, revision=20)
    assert of_kind(core.on_wake(BEAT), WriteLease)
    core.on_cut(BEAT + 5)
    assert of_kind(core.on_written(21, BEAT + 6), Resume, ReadLease) == [ReadLease()]
    assert not core.is_leading(BEAT + 6)
