"""The life of a turn: whatever arrives in whatever order, each token is delivered exactly once."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.frontend.core.turns import assignments as places
from services.frontend.core.turns.assignments import Assignments
from services.frontend.core.turns.turns import (
    AnswerPull,
    AskScheduler,
    Cancel,
    Deliver,
    Effect,
    Fail,
    NewTurn,
    Start,
    Submit,
    TurnLimits,
    Turns,
)
from shared.ids import (
    DEFAULT_TENANT,
    FrontendId,
    HostId,
    ModelId,
    SessionId,
    TenantId,
    TurnId,
    WorkerId,
)
from shared.locations import ANYWHERE
from shared.wire import messages as m

TURN = TurnId("t")
SECOND = 1_000_000_000
REPLY = [100 + n for n in range(12)]


def new_turn() -> NewTurn:
    return NewTurn(
        turn_id=TURN,
        model_id=ModelId("m"),
        prompt=[1, 2, 3],
        sampling=m.SamplingParams(max_tokens=50, seed=1),
        tenant=DEFAULT_TENANT,
    )


def started(
    attempts_lost_max: int = 8, turn_s_max: int = 3600, prompt_bytes_max: int = 8192
) -> Turns:
    limits = TurnLimits(
        attempts_lost_max=attempts_lost_max,
        turn_ns_max=turn_s_max * SECOND,
        prompt_bytes_max=prompt_bytes_max,
    )
    turns = Turns(FrontendId("fe"), limits)
    turns.on_new(new_turn(), 0)
    return turns


def pull(turns: Turns, attempt: int, now_ns: int = 0) -> m.Prompt:
    ref = m.TurnRef(turn_id=TURN, attempt=attempt)
    (effect,) = turns.on_pull(m.PromptPull(turns=[ref]), now_ns)
    assert isinstance(effect, AnswerPull)
    return effect.message.prompts[0]


def delta(attempt: int, index: int, num: int = 1) -> m.TurnDelta:
    tokens = REPLY[index : index + num]
    finish: m.FinishReason | None = "stop" if index + num >= len(REPLY) else None
    return m.TurnDelta(turn_id=TURN, attempt=attempt, index=index, tokens=tokens, finish=finish)


def delivered(effects: list[Effect]) -> list[int]:
    return [t for effect in effects if isinstance(effect, Deliver) for t in effect.tokens]


def test_a_pull_voids_lower_attempts_and_carries_what_was_generated() -> None:
    turns = started()
    assert m.unpack_ints(pull(turns, 1).tokens) == [1, 2, 3]
    assert delivered(turns.on_delta(delta(1, 0, 2), 0)) == REPLY[:2]
    second = pull(turns, 2)
    assert m.unpack_ints(second.tokens) == [1, 2, 3, *REPLY[:2]]
    assert second.num_generated == 2
    assert turns.on_delta(delta(1, 2), 0) == []
    assert pull(turns, 1).gone
    assert delivered(turns.on_delta(delta(2, 2), 0)) == REPLY[2:3]


def test_images_are_pulled_by_every_attempt() -> None:
    turns = Turns(FrontendId("fe"), TurnLimits())
    (submit,) = turns.on_new(replace(new_turn(), images=["AAAA"]), 0)
    assert isinstance(submit, Submit) and not submit.message.prompt
    assert [pull(turns, attempt).images for attempt in (1, 2)] == [["AAAA"], ["AAAA"]]


def test_where_the_session_s_kv_is_goes_along_whenever_a_turn_is_submitted() -> None:
    turns = Turns(FrontendId("fe"), TurnLimits())
    new = replace(new_turn(), kv_at={HostId("h1"): 3})
    first, *_ = turns.on_new(new, 0)
    again, *_ = turns.on_reconnect(1)
    for effect in (first, again):
        assert isinstance(effect, Submit) and effect.message.kv_at == {"h1": 3}
        assert m.decode(m.TurnSubmit, m.encode(effect.message)) == effect.message


def test_a_gap_voids_the_attempt_and_asks_for_the_next() -> None:
    turns = started()
    pull(turns, 1)
    (effect,) = turns.on_delta(delta(1, 3), 5)
    assert isinstance(effect, Submit) and effect.message.attempt == 2
    assert turns.on_delta(delta(1, 0), 5) == []
    assert not pull(turns, 2).gone


def test_attempts_lost_without_end_fail_the_turn() -> None:
    turns = started()
    for attempt in range(1, TurnLimits().attempts_lost_max + 1):
        pull(turns, attempt)
        lost = replace(delta(attempt, 0), finish="cancelled")
        assert isinstance(turns.on_delta(lost, 0)[0], Submit)
    last = TurnLimits().attempts_lost_max + 1
    pull(turns, last)
    fail, cancel = turns.on_delta(replace(delta(last, 0), finish="cancelled"), 0)
    assert isinstance(fail, Fail) and isinstance(cancel, Cancel)
    assert len(turns) == 0


def test_attempts_may_be_lost_as_often_as_they_like_while_tokens_come() -> None:
    turns = started(attempts_lost_max=2)
    attempt = 1
    for index in range(len(REPLY) - 1):
        for _ in range(2):
            pull(turns, attempt)
            assert isinstance(turns.on_delta(delta(attempt, index + 1, 0), 0)[0], Submit)
            attempt += 1
        pull(turns, attempt)
        assert delivered(turns.on_delta(delta(attempt, index), 0)) == [REPLY[index]]


def test_a_turn_ends_when_its_time_is_over_although_tokens_come() -> None:
    turns = started(turn_s_max=5)
    pull(turns, 1, 4 * SECOND)
    turns.on_delta(delta(1, 0), 4 * SECOND)
    assert turns.on_tick(5 * SECOND - 1) == []
    fail, cancel, _ = turns.on_tick(5 * SECOND)
    assert isinstance(fail, Fail) and isinstance(cancel, Cancel)
    assert (fail.failure.code, fail.failure.http_status) == ("turn_timeout", 504)
    assert cancel.message.turn_id == TURN and len(turns) == 0


def test_a_partly_repeated_delta_delivers_its_new_tokens_and_logprobs() -> None:
    turns = started()
    pull(turns, 1)
    turns.on_delta(delta(1, 0, 2), 0)
    entries = [m.TokenLogprobs(token=token, logprob=-1.0) for token in REPLY[1:4]]
    (effect,) = turns.on_delta(replace(delta(1, 1, 3), logprobs=entries), 0)
    assert isinstance(effect, Deliver)
    assert effect.tokens == REPLY[2:4]
    assert effect.logprobs is not None and [e.token for e in effect.logprobs] == REPLY[2:4]


def test_an_error_ends_the_turn() -> None:
    turns = started()
    pull(turns, 1)
    (effect,) = turns.on_delta(replace(delta(1, 0), finish="error", code="x", message="y"), 0)
    assert isinstance(effect, Fail) and effect.failure.code == "x"
    assert turns.on_cancel(TURN) == []
    assert turns.on_failed(effect.failure) == []


@pytest.mark.parametrize(
    ("code", "status"),
    [("overloaded", 503), ("context_length_exceeded", 400), ("broken", 500), ("", 500)],
)
def test_a_worker_s_refusal_has_the_status_of_its_code(code: str, status: int) -> None:
    turns = started()
    pull(turns, 1)
    (effect,) = turns.on_delta(replace(delta(1, 0), finish="error", code=code), 0)
    assert isinstance(effect, Fail) and effect.failure.http_status == status


def test_silence_submits_again_and_gives_up_only_without_scheduler() -> None:
    turns = started()
    assert turns.on_tick(2 * SECOND) == []
    again, ask = turns.on_tick(3 * SECOND)
    assert isinstance(again, Submit) and isinstance(ask, AskScheduler)
    assert turns.on_tick(4 * SECOND) == []
    pull(turns, 1, 5 * SECOND)
    assert turns.on_tick(14 * SECOND) == []
    assert isinstance(turns.on_tick(15 * SECOND)[0], Submit)
    turns.on_scheduler_seen(64 * SECOND)
    assert isinstance(turns.on_tick(66 * SECOND)[0], Submit)
    fail, cancel, _ = turns.on_tick(124 * SECOND)
    assert isinstance(fail, Fail) and fail.failure.http_status == 503
    assert isinstance(cancel, Cancel)


def test_a_reconnect_submits_what_no_worker_has() -> None:
    turns = started()
    assert isinstance(turns.on_reconnect(1)[0], Submit)
    pull(turns, 1)
    assert turns.on_reconnect(2) == []


def test_a_cancelled_turn_is_gone() -> None:
    turns = started()
    (effect,) = turns.on_cancel(TURN)
    assert isinstance(effect, Cancel) and effect.message.turn_id == TURN
    assert pull(turns, 1).gone
    assert turns.on_delta(delta(1, 0), 0) == []


events = st.one_of(
    st.tuples(st.just("pull"), st.integers(1, 4), st.just(0), st.just(0)),
    st.tuples(
        st.just("delta"), st.integers(1, 5), st.integers(0, len(REPLY) - 1), st.integers(1, 4)
    ),
    st.tuples(st.just("tick"), st.integers(0, 9), st.just(0), st.just(0)),
)


@given(st.lists(events, max_size=60), st.sampled_from([0, 8192]))
@settings(max_examples=300, deadline=None)
def test_any_interleaving_yields_exactly_the_reply(
    script: list[tuple[str, int, int, int]], prompt_bytes_max: int
) -> None:
    """Duplicate, late, voided and re-attempted deltas, in any order, with or without a pull before
    them, then one honest attempt.
    """
    turns = started(1000, prompt_bytes_max=prompt_bytes_max)
    got: list[int] = []
    finishes = 0
    highest = 1

    def take(effects: list[Effect]) -> None:
        nonlocal finishes, highest
        got.extend(delivered(effects))
        for effect in effects:
            assert not isinstance(effect, Fail)
            finishes += isinstance(effect, Deliver) and effect.finish is not None
            if isinstance(effect, Submit):
                highest = max(highest, effect.message.attempt)

    now_ns = 0
    for kind, a, b, c in script:
        now_ns += 1000
        if kind == "pull":
            pull(turns, a, now_ns)
            highest = max(highest, a)
        elif kind == "tick":
            take(turns.on_tick(now_ns))
        elif (finishes == 0 and b <= len(got)) or (finishes == 0 and highest < 8):
            take(turns.on_delta(delta(a, b, c), now_ns))
            highest = max(highest, a)
        assert got == REPLY[: len(got)]
    if finishes == 0:
        last = pull(turns, highest + 1, now_ns)
        assert last.num_generated == len(got)
        for index in range(last.num_generated, len(REPLY)):
            take(turns.on_delta(delta(highest + 1, index), now_ns))
            take(turns.on_delta(delta(highest + 1, index), now_ns))
    assert got == REPLY
    assert finishes == 1
    assert len(turns) == 0


@given(st.lists(events, max_size=40), st.sampled_from([0, 8192]))
@settings(max_examples=100, deadline=None)
def test_a_token_alone_is_taken_as_a_delta_with_it_is(
    script: list[tuple[str, int, int, int]], prompt_bytes_max: int
) -> None:
    turns, twin = (started(1000, prompt_bytes_max=prompt_bytes_max) for _ in range(2))
    for now_ns, (kind, attempt, index, num) in enumerate(script):
        if kind == "pull":
            assert pull(turns, attempt, now_ns) == pull(twin, attempt, now_ns)
        elif kind == "tick":
            assert turns.on_tick(now_ns) == twin.on_tick(now_ns)
        else:
            said = delta(attempt, index, max(num - 2, 1))
            expected = turns.on_delta(said, now_ns)
            if len(said.tokens) == 1 and said.finish is None:
                token = (TURN, attempt, index, said.tokens[0])
                assert twin.on_token(token, now_ns) == expected
            else:
                assert twin.on_delta(said, now_ns) == expected
    assert pull(turns, 9).tokens == pull(twin, 9).tokens


def test_a_stop_ends_every_turn_with_an_error_and_cancels_it() -> None:
    turns = started()
    pull(turns, 1)
    fail, cancel = turns.on_stop()
    assert isinstance(fail, Fail) and fail.failure.code == "stopping"
    assert isinstance(cancel, Cancel) and cancel.message.turn_id == TURN
    assert len(turns) == 0
    assert turns.on_stop() == []


def scored(attempt: int, tokens: list[int], *entries: int, index: int = 0) -> m.TurnDelta:
    """A delta with log-probabilities of these tokens of the prompt."""
    made = [m.TokenLogprobs(token=token, logprob=-1.0) for token in entries]
    return m.TurnDelta(
        turn_id=TURN, attempt=attempt, index=index, tokens=tokens, prompt_logprobs=made or None
    )


def asking_for_scores() -> Turns:
    turns = Turns(FrontendId("fe"), TurnLimits())
    new = new_turn()
    turns.on_new(replace(new, sampling=replace(new.sampling, prompt_logprobs=0)), 0)
    pull(turns, 1)
    return turns


def test_parts_of_the_prompt_s_scores_are_delivered_together() -> None:
    turns = asking_for_scores()
    assert turns.on_delta(scored(1, [], 1), 0) == []
    assert turns.on_delta(scored(1, [], 2, 3), 0) == []
    (effect,) = turns.on_delta(scored(1, [100]), 0)
    assert isinstance(effect, Deliver) and effect.tokens == [100]
    assert [entry.token for entry in effect.prompt_logprobs or []] == [1, 2, 3]
    (later,) = turns.on_delta(scored(1, [101], index=1), 0)
    assert isinstance(later, Deliver) and later.prompt_logprobs is None


def test_a_part_that_was_lost_voids_the_attempt_and_the_next_begins_anew() -> None:
    turns = asking_for_scores()
    turns.on_delta(scored(1, [], 2, 3), 0)
    (effect,) = turns.on_delta(scored(1, [100]), 0)
    assert isinstance(effect, Submit) and effect.message.attempt == 2
    pull(turns, 2)
    (effect,) = turns.on_delta(scored(2, [100], 1, 2, 3), 0)
    assert isinstance(effect, Deliver)
    assert [entry.token for entry in effect.prompt_logprobs or []] == [1, 2, 3]


def pull_all(turns: Turns, ids: list[str], room: int) -> tuple[dict[str, m.Prompt], list[Effect]]:
    refs = [m.TurnRef(turn_id=TurnId(turn_id), attempt=1) for turn_id in ids]
    request = m.PromptPull(turns=refs)
    answer, *effects = turns.on_pull(request, 0, room)
    assert isinstance(answer, AnswerPull)
    assert len(m.encode(answer.message)) <= room
    return {prompt.turn_id: prompt for prompt in answer.message.prompts}, effects


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=12))
def test_an_answer_holds_what_fits_and_repeated_pulls_bring_every_prompt(sizes: list[int]) -> None:
    room = 8_000
    turns = Turns(FrontendId("f"), TurnLimits())
    for number, size in enumerate(sizes):
        turns.on_new(replace(new_turn(), turn_id=TurnId(f"t{number}"), prompt=[7] * size), 0)
    left = [f"t{number}" for number in range(len(sizes))]
    brought: dict[str, m.Prompt] = {}
    failed: set[str] = set()
    while left:
        some, effects = pull_all(turns, left, room)
        assert some, "an answer brings the asker on"
        brought |= some
        for effect in effects:
            assert isinstance(effect, Fail)
            assert (effect.failure.code, effect.failure.http_status) == ("payload_too_large", 413)
            failed.add(effect.turn_id)
        left = [turn_id for turn_id in left if turn_id not in some]
    for number, size in enumerate(sizes):
        prompt = brought[f"t{number}"]
        assert prompt.gone == (prompt.turn_id in failed)
        assert prompt.gone or len(m.unpack_ints(prompt.tokens)) == size
        assert not prompt.gone or size * 16 / 3 > room - 1000


def test_a_turn_that_was_left_out_is_as_if_it_was_not_asked_for() -> None:
    turns = Turns(FrontendId("f"), TurnLimits())
    for name in ("a", "b"):
        turns.on_new(replace(new_turn(), turn_id=TurnId(name), prompt=[7] * 1000), 0)
    some, _ = pull_all(turns, ["a", "b"], 8_000)
    assert list(some) == ["a"]
    effects = turns.on_reconnect(0)
    assert [e.message.turn_id for e in effects if isinstance(e, Submit)] == ["b"]


def submitted(turns: Turns, new: NewTurn) -> m.TurnSubmit:
    (effect,) = turns.on_new(new, 0)
    assert isinstance(effect, Submit)
    return effect.message


def test_a_short_prompt_goes_along_with_the_first_submit_only() -> None:
    turns = Turns(FrontendId("f"), TurnLimits())
    prompt = m.decode(m.Prompt, submitted(turns, new_turn()).prompt.encode())
    assert m.unpack_ints(prompt.tokens) == [1, 2, 3] and prompt.sampling.max_tokens == 50
    assert (prompt.turn_id, prompt.num_generated, prompt.gone) == (TURN, 0, False)
    again = [e.message.prompt for e in turns.on_reconnect(0) if isinstance(e, Submit)]
    assert again == [""]
    usual = replace(new_turn(), turn_id=TurnId("usual"), prompt=[7] * 8000)
    assert 0 < len(submitted(turns, usual).prompt) <= TurnLimits().prompt_bytes_max
    long = replace(new_turn(), turn_id=TurnId("long"), prompt=[7] * 10_000)
    assert submitted(turns, long).prompt == ""


def placed(
    session: str, expires_in_ns: int = 60 * SECOND, kv_at: dict[HostId, int] | None = None
) -> m.SessionPlaced:
    return m.SessionPlaced(
        session_id=SessionId(session),
        model_id=ModelId("m"),
        worker_id=WorkerId("w1"),
        expires_in_ns=expires_in_ns,
        kv_at=kv_at or {},
    )


def test_an_expected_turn_is_sent_to_its_worker_at_once_and_the_scheduler_told() -> None:
    turns = Turns(FrontendId("f"), TurnLimits())
    turns.on_placed(placed("s"), 0)
    new = replace(new_turn(), session_id=SessionId("s"))
    submit, start = turns.on_new(new, 60 * SECOND - 1)
    assert isinstance(submit, Submit) and isinstance(start, Start)
    assert (submit.message.sent_to, submit.message.prompt) == ("w1", "")
    assert (start.worker_id, start.message.attempt, start.message.session_id) == ("w1", 1, "s")
    prompt = m.decode(m.Prompt, start.message.prompt.encode())
    assert m.unpack_ints(prompt.tokens) == [1, 2, 3]
    assert delivered(turns.on_delta(delta(1, 0), 0)) == REPLY[:1]
    again = replace(new, turn_id=TurnId("again"))
    assert submitted(turns, again).sent_to is None, "a place is for one turn"


A, B, C = HostId("a"), HostId("b"), HostId("c")


@pytest.mark.parametrize(
    ("told", "known", "sent"),
    [
        ({A: 3, B: 1}, {A: 2, B: 5, C: 1}, {A: 3, B: 5, C: 1}),
        ({A: 3}, {}, {A: 3}),
        ({ANYWHERE: 9}, {B: 5}, {B: 5}),
        ({ANYWHERE: 9}, {}, {ANYWHERE: 9}),
        ({}, {B: -1, HostId("no host"): 3, ANYWHERE: 7}, {}),
    ],
)
def test_an_expected_turn_is_told_where_its_scheduler_knows_kv_too(
    told: dict[HostId, int], known: dict[HostId, int], sent: dict[HostId, int]
) -> None:
    turns = Turns(FrontendId("f"), TurnLimits())
    turns.on_placed(placed("s", kv_at=known), 0)
    submit, start = turns.on_new(replace(new_turn(), session_id=SessionId("s"), kv_at=told), 0)
    assert isinstance(submit, Submit) and isinstance(start, Start)
    assert start.message.kv_at == submit.message.kv_at == sent


def test_a_long_prompt_is_sent_for_by_the_worker() -> None:
    turns = Turns(FrontendId("f"), TurnLimits(prompt_bytes_max=10))
    turns.on_placed(placed("s"), 0)
    _, start = turns.on_new(replace(new_turn(), session_id=SessionId("s")), 0)
    assert isinstance(start, Start) and start.message.prompt == ""
    assert not pull(turns, 1).gone


@pytest.mark.parametrize(
    "change",
    [
        {"session_id": SessionId("other")},
        {"session_id": None},
        {"model_id": ModelId("other")},
        {"tenant": TenantId("other")},
    ],
)
def test_a_place_is_for_one_session_of_one_tenant_and_model(change: dict[str, Any]) -> None:
    turns = Turns(FrontendId("f"), TurnLimits())
    turns.on_placed(placed("s"), 0)
    new = replace(new_turn(), session_id=SessionId("s"))
    assert submitted(turns, replace(new, **change)).sent_to is None


def test_a_place_expires_and_of_too_many_the_first_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "ASSIGNMENTS_MAX", 2)
    known = Assignments()
    for name in ("a", "b", "a", "c"):
        known.on_placed(placed(name), 0)
    known.on_placed(placed("c", 5), 0)
    assert len(known) == 2
    found = [known.take(DEFAULT_TENANT, SessionId(n), ModelId("m"), 5) for n in ("a", "b", "c")]
    assert [place and place.worker_id for place in found] == ["w1", None, None]
    assert len(known) == 0


def test_the_first_delta_of_an_attempt_that_had_the_prompt_voids_lower_ones() -> None:
    turns = started()
    assert delivered(turns.on_delta(delta(4097, 0, 2), 0)) == REPLY[:2]
    assert pull(turns, 4096).gone
    assert turns.on_delta(delta(4096, 2), 0) == []
    assert delivered(turns.on_delta(delta(4097, 2), 0)) == REPLY[2:3]


def test_an_attempt_that_begins_anew_must_say_again_what_was_said() -> None:
    turns = started()
    turns.on_delta(delta(4097, 0, 3), 0)
    assert delivered(turns.on_delta(delta(8193, 0, 2), 0)) == []
    assert turns.on_delta(delta(4097, 3), 0) == [], "it is void, although it was first"
    assert delivered(turns.on_delta(delta(8193, 2, 2), 0)) == REPLY[3:4]


@pytest.mark.parametrize("num", [1, 2, 5])
def test_one_that_says_something_else_is_void_and_the_next_one_asks(num: int) -> None:
    turns = started()
    turns.on_delta(delta(4097, 0, 3), 0)
    other = replace(delta(8193, 0, num), tokens=[7] * num)
    (effect,) = turns.on_delta(other, 0)
    assert isinstance(effect, Submit)
    assert (effect.message.attempt, effect.message.prompt) == (8194, "")
    assert turns.on_delta(other, 0) == []
    assert m.unpack_ints(pull(turns, 8194).tokens) == [1, 2, 3, *REPLY[:3]]


def test_deltas_without_a_pull_are_void_where_the_prompt_did_not_go_along() -> None:
    turns = started(prompt_bytes_max=10)
    assert turns.on_delta(delta(1, 0), 0) == []
    assert not pull(turns, 1).gone


def test_an_attempt_that_was_cancelled_before_it_began_is_not_lost() -> None:
    turns = started()
    assert turns.on_delta(replace(delta(4097, 0, 0), finish="cancelled"), 0) == []
    assert delivered(turns.on_delta(delta(4098, 0), 0)) == REPLY[:1]


def test_a_pull_ahead_tells_what_there_is_and_changes_nothing() -> None:
    turns = Turns(FrontendId("f"), TurnLimits())
    turns.on_new(new_turn(), 0)
    pull(turns, 3)
    turns.on_delta(delta(3, 0, 2), 1)
    for attempt in (1, 7):
        ref = m.TurnRef(turn_id=TURN, attempt=attempt)
        (answer,) = turns.on_pull(m.PromptPull(turns=[ref], is_ahead=True), 2)
        assert isinstance(answer, AnswerPull)
        (prompt,) = answer.message.prompts
        assert not prompt.gone and prompt.num_generated == 2
        assert m.unpack_ints(prompt.tokens)[-2:] == REPLY[:2]
    assert delivered(turns.on_delta(delta(3, 2, 1), 3)) == REPLY[2:3], "the attempt still counts"
    (answer, *effects) = turns.on_pull(
        m.PromptPull(turns=[m.TurnRef(turn_id=TURN)], is_ahead=True), 4, payload_bytes_max=100
    )
    assert isinstance(answer, AnswerPull) and not effects, "the turn does not fail of it"
    unknown = m.PromptPull(turns=[m.TurnRef(turn_id=TurnId("x"))], is_ahead=True)
    (answer,) = turns.on_pull(unknown, 5)
    assert isinstance(answer, AnswerPull) and answer.message.prompts[0].gone
