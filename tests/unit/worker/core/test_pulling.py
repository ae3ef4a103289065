"""Prompts that come with their starts, and those on their way while their session is deleted."""

from dataclasses import replace

import pytest

from services.worker.core.pulling import DELETED_MAX, DELETED_NS, Pulling
from shared.ids import DEFAULT_TENANT, FrontendId, ModelId, SessionId, TurnId
from shared.wire.messages import Prompt, PromptReply, TurnStart, encode
from tests.tables import largest_table


def start_of(name: str, attempt: int) -> TurnStart:
    return TurnStart(
        turn_id=TurnId(name), frontend_id=FrontendId("f"), model_id=ModelId("m"),
        num_prompt_tokens=1, session_id=SessionId(name), attempt=attempt,
    )  # fmt: skip


def answered(pulling: Pulling) -> dict[str, bool]:
    """By turn, whether it came as private, from a frontend that does not know of a deletion."""
    come = {}
    for pull in pulling.take_pulls():
        prompts = [Prompt(turn_id=ref.turn_id, attempt=ref.attempt) for ref in pull.refs]
        for start, prompt in pulling.on_reply(pull, PromptReply(prompts=prompts)):
            assert prompt is not None
            come[str(start.turn_id)] = prompt.is_private
    return come


def test_a_prompt_that_was_on_its_way_is_private() -> None:
    pulling = Pulling()
    for name in ("fox", "crow"):
        assert pulling.on_start(start_of(name, 1), 0) is None
    pulling.on_forget(DEFAULT_TENANT, SessionId("fox"), 0)
    assert answered(pulling) == {"fox": True, "crow": False}
    pulling.on_start(start_of("fox", 2), 0)  # now its frontend would say it
    assert answered(pulling) == {"fox": False}


def test_one_without_an_answer_is_none() -> None:
    pulling = Pulling()
    start = start_of("fox", 1)
    pulling.on_start(start, 0)
    pulling.on_forget(DEFAULT_TENANT, SessionId("fox"), 0)
    (pull,) = pulling.take_pulls()
    assert pulling.on_reply(pull, None) == [(start, None)]
    assert not pulling._private


def brought(name: str, attempt: int = 1) -> TurnStart:
    """A start that brings its prompt along."""
    prompt = Prompt(turn_id=TurnId(name), attempt=1, tokens="AQAAAA==")
    return replace(start_of(name, attempt), prompt=encode(prompt).decode())


def test_a_prompt_that_came_along_is_not_pulled() -> None:
    pulling = Pulling()
    prompt = pulling.on_start(brought("fox"), 0)
    assert prompt is not None and prompt.tokens == "AQAAAA=="
    assert pulling.take_pulls() == [] and len(pulling) == 0


def test_it_takes_the_place_of_a_pull_for_an_earlier_attempt() -> None:
    pulling = Pulling()
    pulling.on_start(start_of("fox", 1), 0)
    assert pulling.on_start(brought("fox", 2), 0) is not None
    assert answered(pulling) == {} and len(pulling) == 0


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        encode(Prompt(turn_id=TurnId("crow"), attempt=1, tokens="AQAAAA==")).decode(),
        encode(Prompt(turn_id=TurnId("fox"), attempt=1, gone=True)).decode(),
    ],
)
def test_one_that_cannot_be_this_turn_s_is_pulled(text: str) -> None:
    pulling = Pulling()
    assert pulling.on_start(replace(start_of("fox", 1), prompt=text), 0) is None
    assert answered(pulling) == {"fox": False}


def test_a_session_deleted_since_is_asked_about_until_no_start_can_be_older() -> None:
    pulling = Pulling()
    pulling.on_forget(DEFAULT_TENANT, SessionId("fox"), 5)
    assert pulling.on_start(brought("crow"), 6) is not None
    assert pulling.on_start(brought("fox"), 5 + DELETED_NS - 1) is None
    assert pulling.on_start(brought("fox"), 5 + DELETED_NS) is not None


def test_when_too_many_were_deleted_to_remember_every_session_is_asked_about() -> None:
    pulling = Pulling()
    for number in range(DELETED_MAX + 1):
        pulling.on_forget(DEFAULT_TENANT, SessionId(f"s{number}"), number)
    assert largest_table(pulling) == DELETED_MAX
    assert pulling.on_start(brought("s0"), DELETED_NS - 1) is None
    assert pulling.on_start(brought("fox"), DELETED_NS - 1) is None
    assert pulling.on_start(brought("fox"), DELETED_NS) is not None
    pulling.on_forget(DEFAULT_TENANT, SessionId("late"), 2 * DELETED_NS)
    assert list(pulling._deleted) == [(DEFAULT_TENANT, "late")]
