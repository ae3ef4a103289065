"""Prompts that are on their way while their session is deleted."""

from services.worker.core.pulling import Pulling
from shared.ids import DEFAULT_TENANT, FrontendId, ModelId, SessionId, TurnId
from shared.messages import Prompt, PromptReply, TurnStart


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
        pulling.on_start(start_of(name, 1))
    pulling.on_forget(DEFAULT_TENANT, SessionId("fox"))
    assert answered(pulling) == {"fox": True, "crow": False}
    pulling.on_start(start_of("fox", 2))  # now its frontend would say it
    assert answered(pulling) == {"fox": False}


def test_one_without_an_answer_is_none() -> None:
    pulling = Pulling()
    start = start_of("fox", 1)
    pulling.on_start(start)
    pulling.on_forget(DEFAULT_TENANT, SessionId("fox"))
    (pull,) = pulling.take_pulls()
    assert pulling.on_reply(pull, None) == [(start, None)]
    assert not pulling._private
