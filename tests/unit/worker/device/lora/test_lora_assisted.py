"""Passes whose adapters helpers compute from the arena, layer by layer, until they are here."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.worker.core.step import ImageSource, StepPlan, StepResult
from services.worker.device.assist import assistance
from services.worker.device.assist.crew import AssistCrew
from services.worker.device.assist.host_crew import HostCrew
from services.worker.device.assist.orders import Spec
from services.worker.device.assist.stream_crew import StreamCrew
from services.worker.device.base.executor import Finished
from services.worker.device.copying.copies import Copy
from shared.arena import Arena, PageState
from tests.unit.worker.device.assist.streams import InstantStream
from tests.unit.worker.device.driver import pool_of
from tests.unit.worker.device.gpu.test_gpu_executor import Repeats
from tests.unit.worker.device.lora.test_lora import BASE, Served, logprobs, serve
from tests.unit.worker.device.test_torch_executor import prompt

# What PEFT asks transformers is not ours to change.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

EPOCH, GENERATION = 3, 12
PAGES_MAX = 400
PATIENCE_NS = 60_000_000_000
NAMES = ["one", "five", "eight"]  # `wide` has the head, which helpers leave out


@dataclass
class Away:
    """An executor at whose steps no adapter is in the pool, which holds no number where it was: its
    images are in the arena. A layer's pages come when they are waited for.

    Attributes:
        here_from: the first layer that is in the pool.
        waited: layers that were waited for.
        before: is told of each step before it is launched.
    """

    executor: Any
    crew: AssistCrew
    arena: Arena
    here_from: int = 1 << 30
    waited: set[int] = field(default_factory=set)
    num_failed: int = 0
    before: Any = None
    _pages: dict[int, Any] = field(default_factory=dict)
    _saved: dict[int, torch.Tensor] = field(default_factory=dict)
    _layers: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        gate = self.executor.mover.gate
        gate.wait, gate.has = self._wait, self._has
        gate.has_started, gate.wait_started = self._has, self._wait_started
        self.executor._crew = self.crew
        self.crew.attach(self.arena, EPOCH)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executor, name)

    def launch(self, plan: StepPlan) -> Finished:
        self._pages |= {image.line: image.pages.T.tolist() for image in plan.images}
        lines = {line for line in plan.adapters.tolist() if line >= 0}
        streams, assists, first = {}, {}, 0
        for line in sorted(lines):
            layers = self._pages[line]
            streams[line] = [
                pages if layer < self.here_from else [] for layer, pages in enumerate(layers)
            ]
            places = np.arange(first, first + np.size(layers)).reshape(np.shape(layers))
            first += np.size(layers)
            for layer, pages in enumerate(layers):
                for page, place in zip(pages, places[layer], strict=True):
                    raw = pool_of(self.executor)[page].view(torch.uint8).flatten()
                    self.arena.pages[place] = raw.numpy()
                    self.arena.set_word(int(place), GENERATION, PageState.READY)
                    if layer < self.here_from:
                        self._layers[page] = layer
                        self._saved[page] = pool_of(self.executor)[page].clone()
                        pool_of(self.executor)[page] = float("nan")
            generations = np.full_like(places, GENERATION).tolist()
            assists[line] = ImageSource(places.tolist(), generations, EPOCH)
        if self.before is not None and lines:
            self.before()
        told = replace(plan, streams=streams, assists=assists)
        result: StepResult = self.executor.launch(told).result()
        self.num_failed += len(result.failed)
        self._bring(list(self._saved))
        return Finished(result)

    def _bring(self, pages: list[int]) -> None:
        for page in pages:
            if page in self._saved:
                pool_of(self.executor)[page] = self._saved.pop(page)

    def _has(self, pages: list[int]) -> bool:
        return self._saved.keys().isdisjoint(pages)

    def _wait(self, pages: list[int], timeout_ns: int) -> bool:
        self.waited |= {self._layers[page] for page in pages if page in self._saved}
        self._bring(pages)
        return True

    def _wait_started(self, pages: list[int], timeout_ns: int) -> list[Copy]:
        self._wait(pages, timeout_ns)
        return []

    def close(self) -> None:
        self.executor._crew = None  # it serves other tests
        self.executor.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return serve("llama", tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def crew(served: Served) -> Iterator[HostCrew]:
    card = served.model.lora
    assert card is not None
    sites = tuple(served.model.lora_sites)
    made = HostCrew(Spec(card, served.model.dtype, sites, 512, rows_max=40), 2)
    assert made.await_ready(2, 300_000_000_000)
    yield made
    made.close()


@pytest.fixture(scope="module")
def stream_crew(served: Served) -> Iterator[StreamCrew]:
    card = served.model.lora
    assert card is not None
    sites = tuple(served.model.lora_sites)
    spec = Spec(card, served.model.dtype, sites, 512, rows_max=40, is_streamed=True)
    made = StreamCrew(spec, 2, InstantStream(), torch.device("cpu"), PATIENCE_NS)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def patient(crew: HostCrew, monkeypatch: pytest.MonkeyPatch) -> None:
    """All helpers are there, and however slow a machine is, none of them counts as late."""
    monkeypatch.setattr(assistance, "PATIENCE_NS", PATIENCE_NS)
    assert crew.await_ready(2, 300_000_000_000)


@pytest.fixture
def arena(served: Served, tmp_path: Path) -> Arena:
    return Arena.create(tmp_path / "arena", PAGES_MAX, served.model.page_bytes)


TURNS = {name: (name, prompt(2, 60), 6) for name in [BASE, *NAMES]}
TURNS |= {f"{name} again": (name, prompt(3, 30), 6) for name in NAMES}


def run(served: Served, record: Repeats | None = None, **made: Any) -> tuple[Any, Away]:
    """Args:
    record: for the executor for GPUs.
    """
    away: list[Away] = []

    def wrap(executor: Any) -> Any:
        away.append(Away(executor, **made))
        return away[0]

    return served.run(TURNS, record=record, wrap=wrap), away[0]


def assert_same(driver: Any, wanted: Any) -> None:
    for name in TURNS:
        assert driver.tokens(name) == wanted.tokens(name)
        assert torch.allclose(logprobs(driver, name), logprobs(wanted, name), atol=1e-4)


@pytest.mark.parametrize("here_from", [100, 1])
def test_helpers_add_what_is_not_here(
    here_from: int, served: Served, crew: HostCrew, arena: Arena
) -> None:
    """All layers, or the first; several adapters and the base in each step."""
    wanted = served.run(TURNS)
    driver, away = run(served, crew=crew, arena=arena, here_from=here_from)
    assert not away.waited, "helpers were there, and it waited"
    assert_same(driver, wanted)


def test_what_helpers_cannot_read_is_waited_for(
    served: Served, crew: HostCrew, arena: Arena
) -> None:
    wanted = served.run(TURNS)

    def spoil() -> None:
        arena.set_word(1, GENERATION + 1, PageState.READY)

    driver, seen = run(served, crew=crew, arena=arena, before=spoil)
    assert seen.waited and not seen.num_failed
    assert_same(driver, wanted)


def test_a_helper_that_is_killed_costs_a_wait(served: Served, crew: HostCrew, arena: Arena) -> None:
    wanted = served.run(TURNS)
    killed: list[int] = []

    def kill_one() -> None:
        if not killed:
            killed.append(crew.pids[0])
            os.kill(killed[0], signal.SIGKILL)

    driver, _ = run(served, crew=crew, arena=arena, before=kill_one)
    assert killed
    assert_same(driver, wanted)
    assert crew.await_ready(2, 300_000_000_000)


def test_more_than_helpers_take_is_waited_for(
    served: Served, arena: Arena, crew: HostCrew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostCrew, "tokens_max", 0)
    wanted = served.run(TURNS)
    driver, away = run(served, crew=crew, arena=arena)
    assert away.waited
    assert_same(driver, wanted)


@pytest.mark.parametrize("here_from", [100, 1])
def test_helpers_add_what_is_not_here_beside_a_gpu(
    here_from: int, served: Served, stream_crew: StreamCrew, arena: Arena
) -> None:
    assert stream_crew.await_ready(2, 300_000_000_000)
    wanted = served.run(TURNS)
    driver, away = run(served, Repeats(), crew=stream_crew, arena=arena, here_from=here_from)
    assert not away.waited, "helpers were there, and it waited"
    assert not away.num_failed
    assert_same(driver, wanted)


@pytest.mark.parametrize("harm", ["page", "helper"])
def test_beside_a_gpu_what_helpers_did_not_add_fails_its_rows(
    harm: str, served: Served, stream_crew: StreamCrew, arena: Arena
) -> None:
    """Once: then their turns begin again."""
    assert stream_crew.await_ready(2, 300_000_000_000)
    wanted = served.run(TURNS)
    harmed: list[str] = []

    def do_harm() -> None:
        if harmed:
            return
        harmed.append(harm)
        if harm == "page":
            arena.set_word(1, GENERATION + 1, PageState.READY)
        else:
            os.kill(stream_crew.pids[0], signal.SIGKILL)

    driver, away = run(served, Repeats(), crew=stream_crew, arena=arena, before=do_harm)
    # Who sees a helper's death before the pass begins gives all its rows to the other one.
    assert away.num_failed or harm == "helper"
    assert_same(driver, wanted)
