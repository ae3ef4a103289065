"""A model whose template takes too long keeps one process busy, not all that other models need."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.frontend.rendering import frames, texts
from services.frontend.rendering.pool import Pool
from services.frontend.rendering.texts import SLOW_WAITING_MAX, Texts
from services.frontend.rendering.tokenizer import ModelTokenizer
from shared.errors import InvalidRequest
from shared.fair_slots import Overloaded


class Quick:
    """Answers when it is told to."""

    limit_s = 3.0

    def __init__(self) -> None:
        self.running: list[asyncio.Future[tuple[bytes, bytes]]] = []

    async def run(self, _: frames.Task) -> tuple[bytes, bytes]:
        answer: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()
        self.running.append(answer)
        return await answer

    def end(self, kind: bytes) -> None:
        self.running.pop(0).set_result((kind, b"text"))


def tokenizer(name: str) -> ModelTokenizer:
    return cast(ModelTokenizer, SimpleNamespace(name=name, source=f"/{name}"))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_slow_template_is_run_once_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        quick = Quick()
        subject = Texts(cast(Pool, quick), cast(Pool, quick))

        def asked(name: str) -> "asyncio.Task[str]":
            messages: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
            return asyncio.create_task(subject.render(tokenizer(name), messages, {}))

        first = [asked("slow"), asked("slow")]
        await settle()
        assert len(quick.running) == 2
        quick.end(frames.SLOW)
        quick.end(frames.TEXT)
        with pytest.raises(InvalidRequest, match="chat template runs longer than 1 s"):
            await first[0]
        assert await first[1] == "text"

        waiting = [asked("slow") for _ in range(SLOW_WAITING_MAX)]
        other = asked("other")
        await settle()
        assert len(quick.running) == 2, "one of the slow template and the other model's"
        with pytest.raises(Overloaded):
            await asked("slow")
        for _ in range(SLOW_WAITING_MAX + 1):
            quick.end(frames.TEXT)
            await settle()
        assert {await task for task in (*waiting, other)} == {"text"}

        monkeypatch.setattr(texts, "SLOW_S", 0.0)
        again = asked("slow")
        await settle()
        quick.end(frames.SLOW)
        with pytest.raises(InvalidRequest):
            await again
        both = [asked("slow"), asked("slow")]
        await settle()
        assert len(quick.running) == 2, "it is not held against a template for ever"
        quick.end(frames.TEXT)
        quick.end(frames.TEXT)
        await asyncio.gather(*both)

    asyncio.run(scenario())
