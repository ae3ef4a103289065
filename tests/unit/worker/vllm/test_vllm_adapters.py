"""Turns on adapters, on a vLLM that is made up."""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.worker.core.vllm.adapters import AdapterRoom
from services.worker.core.vllm.replies import Output
from services.worker.core.vllm.requests import AdapterFiles
from services.worker.vllm import adapters
from services.worker.vllm.protocol import AdapterUnavailable
from shared.ids import ModelId, SessionId, TurnId
from shared.wire.messages import AdapterRef, Prefetch, TurnCancel
from tests.adapters import CARD, write_adapter
from tests.unit.worker.vllm.fake_engine import FakeEngine
from tests.unit.worker.vllm.test_vllm_runner import INFO, Scene, prompt, start

RANKS = {"self_attn.q_proj": 4}
NAMES = ["a" * 32, "b" * 32, "c" * 32]


@dataclass
class LoraEngine(FakeEngine):
    """Has what it was asked to load.

    Attributes:
        may_load: waited for before each load.
    """

    info: Any = field(default_factory=lambda: replace(INFO, lora=CARD))
    adapter_room: AdapterRoom = field(
        default_factory=lambda: AdapterRoom(lines_max=1, resident_max=2)
    )
    loaded: dict[int, str] = field(default_factory=dict)
    flaw: str = ""
    may_load: asyncio.Event = field(default_factory=asyncio.Event)

    async def add_adapter(self, adapter: AdapterFiles) -> None:
        await self.may_load.wait()
        if self.flaw:
            raise AdapterUnavailable(self.flaw)
        self.loaded[adapter.number] = adapter.name
        assert len(self.loaded) <= self.adapter_room.resident_max

    async def remove_adapter(self, number: int) -> None:
        del self.loaded[number]


class LoraScene(Scene):
    """A runner on it."""

    engine: LoraEngine

    def __init__(self, folder: Path) -> None:
        super().__init__(engine=LoraEngine())
        self.engine.may_load.set()
        self.runner._adapters = adapters.VllmAdapters(
            self.engine, self.runner._clock, lambda: str(folder), self.bring
        )

    async def bring(self, adapter_hash: str) -> None:
        """Nobody has it."""

    def turn(self, turn_id: str, number: int) -> None:
        ref = AdapterRef(adapter_hash=NAMES[number], name=f"n{number}", ranks=RANKS)
        given = replace(prompt(), turn_id=TurnId(turn_id))
        self.runner.on_prompt(start(turn_id=TurnId(turn_id), adapter=ref), given)

    @property
    def asked(self) -> list[str]:
        """Of each request, its adapter."""
        return [each.adapter.name for each in self.engine.asked if each.adapter is not None]

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while True:  # files are looked for in a thread
                await asyncio.sleep(0)
                if is_so():
                    break
        await self.settle()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(NAMES):
        write_adapter(tmp_path / name, seed=number)
    return tmp_path


def test_an_adapter_is_loaded_once_and_reported(folder: Path) -> None:
    async def scenario() -> None:
        scene = LoraScene(folder)
        scene.engine.may_load.clear()
        scene.turn("t1", 0)
        scene.turn("t2", 0)
        await scene.settle()
        assert scene.runner.status().adapters.waiting == ["n0"] and not scene.engine.asked
        scene.engine.may_load.set()
        await scene.until(lambda: len(scene.engine.asked) == 2)
        assert scene.engine.loaded == {1: NAMES[0]} and scene.asked == [NAMES[0]] * 2
        scene.engine.outputs.put_nowait(Output(tokens=[5]))
        await scene.settle()
        status = scene.runner.status().adapters
        assert status.running == ["n0"] and status.resident == [NAMES[0]]
        times = scene.runner.take_adapter_times()
        assert len(times.loads) == 1 and [kind for kind, _ in times.first_tokens] == ["waited"]

    asyncio.run(scenario())


def test_a_turn_waits_for_a_place_and_the_one_unused_for_longest_leaves(folder: Path) -> None:
    async def scenario() -> None:
        scene = LoraScene(folder)
        for number in range(3):
            scene.turn(f"t{number}", number)
        await scene.until(lambda: len(scene.engine.asked) == 2)
        assert scene.asked == NAMES[:2], "there are two places"
        scene.runner.on_cancel(TurnCancel(turn_id=TurnId("t0")))
        scene.engine.outputs.put_nowait(Output(tokens=[], finish="abort"))
        await scene.until(lambda: len(scene.engine.asked) == 3)
        assert scene.asked == NAMES and sorted(scene.engine.loaded.values()) == NAMES[1:]
        assert set(scene.engine.loaded) == {2, 3}, "numbers are used once"

    asyncio.run(scenario())


def test_a_turn_that_waits_for_a_place_can_be_cancelled(folder: Path) -> None:
    async def scenario() -> None:
        scene = LoraScene(folder)
        for number in range(3):
            scene.turn(f"t{number}", number)
        await scene.until(lambda: len(scene.engine.asked) == 2)
        scene.runner.on_cancel(TurnCancel(turn_id=TurnId("t2")))
        await scene.settle()
        assert len(scene.engine.asked) == 2 and scene.runner.num_turns == 2
        assert len(scene.runner._tasks._tasks) == 2, "nothing waits for it any more"

    asyncio.run(scenario())


@pytest.mark.parametrize("flaw", ["", "it is damaged"])
def test_an_adapter_that_cannot_be_loaded_costs_its_own_turns(
    folder: Path, flaw: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "PAUSES_NS", (0,))

    async def scenario() -> None:
        scene = LoraScene(folder if flaw else folder / "elsewhere")
        scene.engine.flaw = flaw
        scene.turn("t1", 0)
        await scene.until(lambda: not scene.runner.num_turns)
        (delta,) = scene.deltas
        assert delta.finish == "error" and delta.code == "adapter_unavailable"
        assert (flaw or NAMES[0]) in delta.message and not scene.engine.asked
        status = scene.runner.status().adapters
        assert status.num_failures == 1 and not status.resident

    asyncio.run(scenario())


def test_files_that_are_elsewhere_are_brought(folder: Path) -> None:
    async def scenario() -> None:
        scene = LoraScene(folder / "host")

        async def bring(adapter_hash: str) -> None:
            shutil.copytree(folder / adapter_hash, folder / "host" / adapter_hash)

        scene.runner._adapters._bring = bring
        scene.turn("t1", 0)
        await scene.until(lambda: scene.asked == [NAMES[0]])
        scene.engine.outputs.put_nowait(Output(tokens=[9], finish="stop"))
        await scene.until(lambda: not scene.runner.num_turns)

    asyncio.run(scenario())


def test_an_announced_adapter_is_loaded_where_there_is_a_free_place(folder: Path) -> None:
    async def scenario() -> None:
        scene = LoraScene(folder)
        hints: Any = SimpleNamespace(on_announced=lambda _: None, withdraw=lambda _: None)
        scene.runner._hints = hints
        for number, name in enumerate(NAMES):
            ref = AdapterRef(adapter_hash=name, ranks=RANKS)
            session = SessionId(f"s{number}")
            scene.runner.on_prefetch(
                Prefetch(session_id=session, model_id=ModelId("m"), adapter=ref)
            )
        await scene.until(lambda: len(scene.engine.loaded) == 2)
        assert list(scene.engine.loaded.values()) == NAMES[:2]
        scene.turn("t", 1)
        await scene.until(lambda: bool(scene.engine.asked))
        scene.engine.outputs.put_nowait(Output(tokens=[9], finish="stop"))
        await scene.settle()
        assert [kind for kind, _ in scene.runner.take_adapter_times().first_tokens] == ["resident"]

    asyncio.run(scenario())
