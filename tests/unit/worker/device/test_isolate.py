"""A turn that breaks the step it is in costs the turns beside it nothing."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from services.worker.core.step import RowScoring, StepPlan, StepResult, TableEntries
from services.worker.device.base.executor import Finished
from services.worker.device.base.step import StepContext
from services.worker.device.cpu.torch_executor import TorchExecutor
from services.worker.device.decoder.loaded_model import Forward
from services.worker.device.isolate import launch_isolated
from services.worker.device.model import load_model
from services.worker.models.demo_model import make_demo_model
from shared.ids import TurnId
from tests.unit.worker.device.driver import Driver, make_core

POISON, SPOILED = 77, 78
INNOCENT = [[1, 2, 3], list(range(1, 70)), [9] * 5]


class Trapped:
    """The model, which cannot take one token and says nonsense after another."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self.take_adapters = forward.take_adapters
        self.sum_outputs = forward.sum_outputs
        self.num_failures = 0

    def __call__(
        self, step: StepContext, tokens: torch.Tensor, wanted: torch.Tensor | None
    ) -> torch.Tensor:
        if (tokens == POISON).any():
            self.num_failures += 1
            raise IndexError("index 77 is out of range")
        logits = self._forward(step, tokens, wanted)
        said = tokens if wanted is None else tokens[wanted]
        logits[said == SPOILED] = float("nan")
        return logits


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[TorchExecutor]:
    made = TorchExecutor(
        load_model(str(make_demo_model(tmp_path / "demo")), "cpu", "auto"),
        "m",
        300,
        lambda *_: None,
    )
    yield made
    made.close()


def run(executor: TorchExecutor, *poisons: list[int]) -> Driver:
    driver = Driver(make_core(executor), executor)
    for number, tokens in enumerate(INNOCENT):
        driver.submit(f"innocent-{number}", tokens)
    for number, tokens in enumerate(poisons):
        driver.submit(f"poison-{number}", tokens)
    driver.run()
    return driver


def trap(executor: TorchExecutor) -> Trapped:
    """Let its model fail on what is poison from now on."""
    model = executor._model
    model.forward = trapped = Trapped(model.forward)
    return trapped


def test_poison_ends_alone_and_nobody_else_notices(executor: TorchExecutor) -> None:
    quiet = run(executor)
    trapped = trap(executor)
    disturbed = run(executor, [POISON], [1, SPOILED], [1, 2, POISON, 4])
    for number in range(len(INNOCENT)):
        name = f"innocent-{number}"
        assert disturbed.tokens(name) == quiet.tokens(name)
        assert disturbed.deltas[name][-1].finish == "length"
    for number in range(3):
        (delta,) = disturbed.deltas[f"poison-{number}"]
        assert (delta.finish, delta.code) == ("error", "poisoned")
    assert trapped.num_failures == 3, "once with the others, then each of the two alone"
    pool = disturbed.core.pool
    assert not disturbed.core.turns
    assert all(block.refs == 0 for block in pool.blocks.values())


def test_what_a_spoiled_turn_alone_ran_on_serves_nobody(executor: TorchExecutor) -> None:
    trap(executor)
    driver = Driver(make_core(executor, prefill_tokens_max=64), executor)
    spoiled = driver.submit("spoiled", [*range(1, 65), *range(64), SPOILED])
    driver.run()
    assert driver.deltas["spoiled"][-1].code == "poisoned"
    assert spoiled.num_computed == 0 and not driver.core.pool.blocks
    driver.submit("other", [*range(1, 65), *range(64), 79])
    driver.run()
    assert driver.deltas["other"][-1].finish == "length"
    assert driver.deltas["other"][0].cached_tokens == 0


def plan_of(num_rows: int) -> StepPlan:
    none = np.empty(0, np.int32)
    return StepPlan(
        turn_ids=[TurnId(f"t{number}") for number in range(num_rows)],
        slots=np.arange(num_rows, dtype=np.int32),
        tokens=np.arange(num_rows, dtype=np.int32),
        following=none,
        carried=none,
        query_starts=np.arange(num_rows + 1, dtype=np.int32),
        context_lens=np.ones(num_rows, np.int32),
        sampling=[None] * num_rows,
        scoring={},
        awaited={},
        entries=TableEntries(none, none, np.empty((0, 1), np.int32)),
        adapters=np.full(num_rows, -1, np.int32),
    )


class Scripted:
    """An executor that fails whenever a row of these names is in a plan.

    Attributes:
        has_died: nothing can be computed any more.
    """

    info = SimpleNamespace(num_layers=1)

    def __init__(self, *bad: str, has_died: bool = False) -> None:
        self._bad = set(bad)
        self._has_died = has_died
        self.num_runs = 0

    def launch(self, plan: StepPlan) -> Finished:
        self.num_runs += 1
        if self._bad & set(plan.turn_ids):
            raise RuntimeError("no")
        return Finished(StepResult(sampled=[None] * plan.num_rows, stall_ns=[5], duration_ns=1))

    def check_device(self) -> None:
        if self._has_died:
            raise OSError("the device is gone")


def test_a_row_that_breaks_is_the_only_one_that_does() -> None:
    executor: Any = Scripted("t1")
    result = launch_isolated(executor, plan_of(3)).result()
    assert list(result.broken) == [1] and "RuntimeError" in result.broken[1]
    assert (result.duration_ns, result.stall_ns) == (2, [10])


def test_a_device_that_is_gone_blames_no_row() -> None:
    executor: Any = Scripted("t1", has_died=True)
    with pytest.raises(OSError, match="the device is gone"):
        launch_isolated(executor, plan_of(3)).result()
    assert executor.num_runs == 1


class Short(Scripted):
    """It has no memory for a row of these names."""

    def launch(self, plan: StepPlan) -> Finished:
        try:
            return super().launch(plan)
        except RuntimeError:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB") from None


def test_a_device_without_memory_blames_no_row() -> None:
    executor: Any = Short("t1")
    with pytest.raises(torch.OutOfMemoryError):
        launch_isolated(executor, plan_of(3)).result()
    assert executor.num_runs == 1


def test_a_prompt_whose_scores_take_too_much_memory_is_refused_alone() -> None:
    executor: Any = Short("t1")
    plan = replace(plan_of(3), scoring={1: RowScoring(0, [1], is_first=True)})
    result = launch_isolated(executor, plan).result()
    assert list(result.broken) == [1] and "OutOfMemoryError" in result.broken[1]


def test_a_broken_invariant_ends_the_engine() -> None:
    class Wrong(Scripted):
        def launch(self, plan: StepPlan) -> Finished:
            raise AssertionError("released more often than acquired")

    executor: Any = Wrong()
    with pytest.raises(AssertionError):
        launch_isolated(executor, plan_of(1)).result()
