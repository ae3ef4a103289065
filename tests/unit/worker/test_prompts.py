"""Pulling prompts from a frontend whose answers hold some of them."""

import asyncio
from typing import Any

from nats.aio.client import Client

from services.worker.prompts import PromptPuller
from shared.bus import Bus
from shared.ids import FrontendId, ModelId, TurnId
from shared.runtime.clock import SystemClock
from shared.wire.messages import Prompt, PromptPull, PromptReply, TurnStart


class Frontend(Bus):
    """Answers with the first prompts asked for.

    Attributes:
        asked: the turns of each pull.
    """

    def __init__(self, num_prompts: int) -> None:
        super().__init__(Client())
        self._num_prompts = num_prompts
        self.asked: list[list[str]] = []

    async def request(self, _: Any, message: PromptPull, *__: str, **___: float) -> Any:  # type: ignore[override]
        self.asked.append([ref.turn_id for ref in message.turns])
        await asyncio.sleep(0)
        told = message.turns[: self._num_prompts]
        return PromptReply(
            prompts=[Prompt(turn_id=ref.turn_id, attempt=ref.attempt) for ref in told]
        )


def pull(frontend: Frontend, *names: str, cancelled: str = "") -> list[tuple[str, bool]]:
    """Turns in the order in which they were answered, and whether with a prompt."""
    answered: list[tuple[str, bool]] = []

    async def scenario() -> None:
        is_over = asyncio.Event()

        def on_prompt(start: TurnStart, prompt: Prompt | None) -> None:
            answered.append((start.turn_id, prompt is not None))
            if cancelled:
                puller.cancel(TurnId(cancelled), 0)
            if not len(puller):
                is_over.set()

        puller = PromptPuller(frontend, SystemClock(), on_prompt)
        for name in names:
            puller.start(
                TurnStart(
                    turn_id=TurnId(name), frontend_id=FrontendId("f"), model_id=ModelId("m"),
                    num_prompt_tokens=10,
                )
            )  # fmt: skip
        async with asyncio.timeout(30):
            await is_over.wait()

    asyncio.run(scenario())
    return answered


def test_what_was_left_out_of_an_answer_is_pulled_again() -> None:
    frontend = Frontend(2)
    assert pull(frontend, *"abcde") == [(name, True) for name in "abcde"]
    assert frontend.asked == [list("abcde"), list("cde"), ["e"]]


def test_an_answer_without_a_prompt_is_no_reason_to_ask_again() -> None:
    frontend = Frontend(0)
    assert pull(frontend, "a", "b") == [("a", False), ("b", False)]
    assert len(frontend.asked) == 1


def test_what_was_cancelled_meanwhile_is_not_pulled_again() -> None:
    frontend = Frontend(1)
    assert pull(frontend, "a", "b", "c", cancelled="b") == [("a", True), ("c", True)]
    assert frontend.asked == [["a", "b", "c"], ["c"]]
