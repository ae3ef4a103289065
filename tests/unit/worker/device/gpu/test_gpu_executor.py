"""The executor for GPUs, on the CPU: all of it but CUDA's own streams, graphs and copies."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.worker.core.effects import PageLoads
from services.worker.core.step import StepPlan
from services.worker.device.copying.copies import HostCopier, PageCopier
from services.worker.device.gpu.decode_graphs import Forward
from services.worker.device.gpu.gpu_executor import DeviceApi, GpuExecutor
from services.worker.device.gpu.launched import GpuLaunched
from services.worker.device.model import load_model
from shared.arena import Arena, PageState
from shared.wire.messages import TokenLogprobs
from shared.wire.urgency import DEMAND_PRIORITY
from tests.unit.worker.device.copying.copiers import LateCopier
from tests.unit.worker.device.driver import Driver, make_core, pool_of
from tests.unit.worker.device.test_torch_executor import executor_of, greedy, prompt, save_model

TURNS_MAX = 5


def raw_pages(pool: torch.Tensor) -> Any:
    return pool.view(torch.uint8).numpy().reshape(len(pool), -1)


def host_copier(pool: torch.Tensor) -> PageCopier:
    return HostCopier(raw_pages(pool))


class Recorder:
    """Stands in for CUDA's graphs: a launch is repeated, on the same memory."""

    def __init__(self) -> None:
        self.num_recorded = self.num_repeated = 0

    def __call__(self, forward: Forward) -> Forward:
        self.num_recorded += 1
        kept = forward().clone()

        def repeat() -> torch.Tensor:
            self.num_repeated += 1
            return kept.copy_(forward())

        return repeat


@contextmanager
def gpu_executor(
    folder: Path, record: Recorder | None, num_pages: int = 300
) -> Iterator[GpuExecutor]:
    executor = GpuExecutor(
        load_model(str(folder), "cpu", "auto"),
        "m",
        num_pages,
        TURNS_MAX,
        DeviceApi(host_copier, record),
        lambda _: None,
    )
    executor.warm_up()
    yield executor
    executor.close()


def assert_close(ours: list[TokenLogprobs] | None, theirs: list[TokenLogprobs] | None) -> None:
    """The same tokens, as likely up to rounding."""
    assert [each.token for each in ours or []] == [each.token for each in theirs or []]
    a, b = ([each.logprob or 0.0 for each in side or []] for side in (ours, theirs))
    assert a == pytest.approx(b, abs=1e-4)


@pytest.mark.parametrize("steps_ahead_max", [0, 1])
@pytest.mark.parametrize("is_recorded", [False, True])
def test_says_what_the_executor_for_cpus_says(
    tmp_path: Path, is_recorded: bool, steps_ahead_max: int
) -> None:
    save_model(tmp_path, "llama")
    wishes: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0, "seed": 7, "top_p": 0.8},
        {"repetition_penalty": 2.0, "presence_penalty": 0.5, "logprobs": 2},
        {"prompt_logprobs": 3, "logprobs": 0},
        {"temperature": 0.7, "seed": 1, "min_tokens": 6},
    ]
    limits = {"prefill_tokens_max": 64, "steps_ahead_max": steps_ahead_max, "turns_running_max": 5}
    said = []
    recorder = Recorder() if is_recorded else None
    for make in (executor_of, partial(gpu_executor, record=recorder)):
        with make(tmp_path) as executor:
            driver = Driver(make_core(executor, **limits), executor)
            for n, wish in enumerate(wishes):
                driver.submit(str(n), prompt(n, 30 + 40 * n), max_tokens=5 + 3 * n, **wish)
            driver.run()
        assert bool(driver.num_carried) == bool(steps_ahead_max)
        said.append([delta for n in range(len(wishes)) for delta in driver.deltas[str(n)]])
    for ours, theirs in zip(*said, strict=True):
        assert (ours.tokens, ours.finish) == (theirs.tokens, theirs.finish)
        assert_close(ours.logprobs, theirs.logprobs)
        assert_close(ours.prompt_logprobs, theirs.prompt_logprobs)
    if recorder is not None:
        assert recorder.num_recorded == 2 * 4, "1, 2, 4 and 5 rows, without adapters and with"
        assert recorder.num_repeated > 5


def test_preempted_turns_lose_nothing(tmp_path: Path) -> None:
    reference = save_model(tmp_path, "llama")
    prompts = {str(n): prompt(n, 60) for n in range(5)}
    with gpu_executor(tmp_path, Recorder(), num_pages=27) as executor:
        driver = Driver(make_core(executor, turns_running_max=TURNS_MAX), executor)
        for name, tokens in prompts.items():
            driver.submit(name, tokens, max_tokens=80)
        driver.run()
    assert driver.core.planner.num_preemptions > 0
    for name, tokens in prompts.items():
        assert driver.tokens(name) == greedy(reference, tokens, 80)


def test_a_prompt_that_comes_token_by_token_is_no_decode(tmp_path: Path) -> None:
    reference = save_model(tmp_path, "llama")
    with gpu_executor(tmp_path, Recorder()) as executor:
        limits = {"turns_running_max": TURNS_MAX, "prefill_tokens_max": 1}
        driver = Driver(make_core(executor, **limits), executor)
        driver.submit("a", prompt(1, 3), max_tokens=12)
        driver.submit("b", prompt(2, 9), max_tokens=4)
        driver.run()
    assert driver.tokens("a") == greedy(reference, prompt(1, 3), 12)
    assert driver.tokens("b") == greedy(reference, prompt(2, 9), 4)


def test_padding_writes_into_no_page_of_anybody(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    told: set[int] = set()
    with gpu_executor(tmp_path, Recorder()) as executor:
        launch = executor.launch

        def watch(plan: StepPlan) -> GpuLaunched:
            told.update(plan.entries.pages.ravel().tolist())
            return launch(plan)

        executor.launch = watch  # type: ignore[method-assign]
        driver = Driver(make_core(executor, turns_running_max=TURNS_MAX), executor)
        for n in range(3):  # of a bucket of four
            driver.submit(str(n), prompt(n, 20), max_tokens=6)
        driver.run()
        written = pool_of(executor)[: executor.info.num_pages].flatten(1).any(1).nonzero()
    assert {int(page) for page in written} == told


@pytest.mark.parametrize("fails", [False, True])
def test_a_step_runs_behind_copies_and_is_void_where_they_bring_other_bytes(
    tmp_path: Path, fails: bool
) -> None:
    """Pages that are on their way when the step is launched; what they bring is known later."""
    save_model(tmp_path / "m", "llama")
    model = load_model(str(tmp_path / "m"), "cpu", "auto")
    copiers: list[LateCopier] = []

    def late_copier(pool: torch.Tensor) -> PageCopier:
        copiers.append(LateCopier(raw_pages(pool), frozenset({9} if fails else ())))
        return copiers[0]

    executor = GpuExecutor(model, "m", 40, 2, DeviceApi(late_copier, None), lambda _: None)
    page_bytes = model.page_bytes
    arena = Arena.create(tmp_path / "arena", 4, page_bytes)
    arena.pages[:] = np.random.default_rng(1).integers(0, 100, arena.pages.shape, np.uint8)
    for page in range(4):
        arena.set_word(page, 1, PageState.READY)
    executor.mover.attach(arena, 1)
    driver = Driver(make_core(executor, turns_running_max=2), executor)
    driver.submit("t", prompt(1, 70))
    plan, _ = driver.core.plan_step(0)
    assert plan is not None
    plan.awaited[0] = [[8], [9], *[[]] * (model.num_layers - 2)]
    executor.mover.submit_loads([PageLoads(DEMAND_PRIORITY, 0, [0], [1], [8], 1)])
    executor.mover.submit_loads([PageLoads(DEMAND_PRIORITY, 1, [1], [1], [9], 1)])
    result = executor.launch(plan).result()
    assert result.failed == ({0} if fails else set())
    assert (result.sampled[0] is None) == fails
    # What was planned behind a failed row fails as well, without waiting.
    following = driver.core.plan_step(0)[0]
    assert following is not None and following.following.tolist() == [0]
    following.awaited[0] = [[8], [9], *[[]] * (model.num_layers - 2)]
    launched = executor.launch(following)
    assert launched.passed.failed == result.failed
    executor.close()
