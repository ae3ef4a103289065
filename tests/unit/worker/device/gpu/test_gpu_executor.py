"""The executor for GPUs, on the CPU: all of it but CUDA's own streams, graphs and copies."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loadtest.bench.gpu.models import record_all
from services.worker.core.effects import PageLoads
from services.worker.core.step import StepPlan
from services.worker.device.copying.copies import HostCopier, PageCopier
from services.worker.device.gpu.gpu_executor import DeviceApi, GpuExecutor
from services.worker.device.gpu.launched import GpuLaunched
from services.worker.device.gpu.pass_inputs import BUCKETS
from services.worker.device.gpu.recordings import Launch, Recorder
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


class Repeats:
    """Stands in for CUDA's graphs: a launch is repeated, on the same memory."""

    def __init__(self, sizes: tuple[int, ...] = (1, 2, 4, 8, 32, 128, 256)) -> None:
        self.num_recorded = self.num_repeated = 0
        self.recorder = Recorder(self._record, lambda: 1 << 40, 1 << 40, sizes)

    def _record(self, launch: Launch) -> Launch:
        self.num_recorded += 1
        kept = launch().clone()

        def repeat() -> torch.Tensor:
            self.num_repeated += 1
            return kept.copy_(launch())

        return repeat


def want_all(executor: GpuExecutor, rank: int = 0) -> None:
    """As if passes of all kinds, with adapters of this rank, had come before."""
    assert executor._recordings is not None
    for each in {0, rank}:
        for is_cut in (False, True):
            executor._recordings._want(each, is_cut=is_cut)


@contextmanager
def gpu_executor(
    folder: Path, record: Repeats | None, num_pages: int = 300
) -> Iterator[GpuExecutor]:
    executor = GpuExecutor(
        load_model(str(folder), "cpu", "auto"),
        "m",
        num_pages,
        TURNS_MAX,
        DeviceApi(host_copier, None if record is None else record.recorder),
        lambda _: None,
    )
    record_all(executor)
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
    recorder = Repeats() if is_recorded else None
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
        assert recorder.num_recorded == 4 + 7, "decodes of 1, 2, 4 and 5 rows, and all sizes"
        assert recorder.num_repeated > 5


def test_preempted_turns_lose_nothing(tmp_path: Path) -> None:
    reference = save_model(tmp_path, "llama")
    prompts = {str(n): prompt(n, 60) for n in range(5)}
    with gpu_executor(tmp_path, Repeats(), num_pages=27) as executor:
        driver = Driver(make_core(executor, turns_running_max=TURNS_MAX), executor)
        for name, tokens in prompts.items():
            driver.submit(name, tokens, max_tokens=80)
        driver.run()
    assert driver.core.planner.num_preemptions > 0
    for name, tokens in prompts.items():
        assert driver.tokens(name) == greedy(reference, tokens, 80)


def test_a_prompt_that_comes_token_by_token_is_no_decode(tmp_path: Path) -> None:
    reference = save_model(tmp_path, "llama")
    with gpu_executor(tmp_path, Repeats()) as executor:
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
    with gpu_executor(tmp_path, Repeats()) as executor:
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


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_a_step_runs_behind_copies_and_is_void_where_they_bring_other_bytes(
    tmp_path: Path, fails: bool, is_recorded: bool
) -> None:
    """Pages that are on their way when the step is launched; what they bring is known later."""
    save_model(tmp_path / "m", "llama")
    model = load_model(str(tmp_path / "m"), "cpu", "auto")
    copiers: list[LateCopier] = []

    def late_copier(pool: torch.Tensor) -> PageCopier:
        copiers.append(LateCopier(raw_pages(pool), frozenset({9} if fails else ())))
        return copiers[0]

    api = DeviceApi(late_copier, Repeats().recorder if is_recorded else None)
    executor = GpuExecutor(model, "m", 40, 2, api, lambda _: None)
    if is_recorded:
        want_all(executor)
        record_all(executor)
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
    assert result.unrecorded == "", "no pass was launched kernel by kernel"
    assert copiers[0].holds, "what reads them runs behind copies"
    assert result.failed == ({0} if fails else set())
    assert (result.sampled[0] is None) == fails
    # What was planned behind a failed row fails as well, without waiting.
    following = driver.core.plan_step(0)[0]
    assert following is not None and following.following.tolist() == [0]
    following.awaited[0] = [[8], [9], *[[]] * (model.num_layers - 2)]
    launched = executor.launch(following)
    assert launched.passed.failed == result.failed
    executor.close()


def reasons(executor: GpuExecutor) -> list[str]:
    """Why passes are not recorded from now on; empty for one that is."""
    found: list[str] = []
    launch = executor.launch

    def noted(plan: StepPlan) -> GpuLaunched:
        launched = launch(plan)
        found.append(launched.passed.unrecorded)
        return launched

    executor.launch = noted  # type: ignore[method-assign]
    return found


def say(executor: GpuExecutor, lengths: list[int], **limits: Any) -> list[list[int]]:
    limits = {"turns_running_max": TURNS_MAX, "prefill_tokens_max": 600, **limits}
    driver = Driver(make_core(executor, **limits), executor)
    for n, length in enumerate(lengths):
        driver.submit(str(n), prompt(n, length), max_tokens=4 + n)
    driver.run()
    return [driver.tokens(str(n)) for n in range(len(lengths))]


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_every_pass_of_up_to_512_tokens_is_one_launch(kind: str, tmp_path: Path) -> None:
    """Prompts, what is left of them, and decodes beside them, of a decoder of our own and of
    transformers'."""
    changes = {"num_local_experts": 4, "num_experts_per_tok": 2} if kind == "mixtral" else {}
    reference = save_model(tmp_path, kind, **changes)
    repeats = Repeats(BUCKETS)
    with gpu_executor(tmp_path, repeats) as executor:
        found = reasons(executor)
        before = repeats.num_repeated
        said = say(executor, [3, 1, 77, 130, 250], prefill_tokens_max=200)
        assert set(found) == {""}
        assert repeats.num_repeated - before == len(found)
    assert said == [
        greedy(reference, prompt(n, length), 4 + n) for n, length in enumerate([3, 1, 77, 130, 250])
    ]


def test_a_pass_of_more_tokens_is_launched_kernel_by_kernel(tmp_path: Path) -> None:
    reference = save_model(tmp_path, "llama", max_position_embeddings=1024)
    with gpu_executor(tmp_path, Repeats((1, 4, 512))) as executor:
        found = reasons(executor)
        assert say(executor, [560]) == [greedy(reference, prompt(0, 560), 4)]
        assert found == ["long", "", "", ""]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(RuntimeError("the driver"), "failed"), (torch.OutOfMemoryError("full"), "memory")],
)
def test_a_recording_that_fails_costs_speed_alone(
    error: Exception, reason: str, tmp_path: Path
) -> None:
    reference = save_model(tmp_path, "llama")
    repeats = Repeats()

    def record(launch: Launch) -> Launch:
        if repeats.num_recorded == 3:
            raise error
        return repeats.recorder.record(launch)

    repeats_all = replace(repeats.recorder, record=record)
    api = DeviceApi(host_copier, repeats_all)
    model = load_model(str(tmp_path), "cpu", "auto")
    executor = GpuExecutor(model, "m", 300, TURNS_MAX, api, lambda _: None)
    found = reasons(executor)
    assert say(executor, [2]) == [greedy(reference, prompt(0, 2), 4)]
    assert set(found) == {"pending"}, "recording is none of a turn's business"
    record_all(executor)
    found.clear()
    assert say(executor, [2, 30]) == [
        greedy(reference, prompt(n, k), 4 + n) for n, k in ((0, 2), (1, 30))
    ]
    assert {"", reason} == set(found)
    executor.close()


def test_a_model_that_cannot_be_recorded_is_not_tried_for_ever(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    tried: list[int] = []

    def record(launch: Launch) -> Launch:
        tried.append(1)
        raise RuntimeError("operation not permitted when stream is capturing")

    api = DeviceApi(host_copier, replace(Repeats().recorder, record=record))
    model = load_model(str(tmp_path), "cpu", "auto")
    executor = GpuExecutor(model, "m", 300, TURNS_MAX, api, lambda _: None)
    record_all(executor)
    assert len(tried) == 3
    found = reasons(executor)
    say(executor, [2, 30])
    assert set(found) == {"failed"}
    executor.close()


def test_recordings_take_no_more_memory_than_they_may(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    repeats = Repeats()
    free = iter(range(1000, 0, -10))
    limited = replace(repeats.recorder, free_bytes=lambda: next(free), bytes_max=35)
    model = load_model(str(tmp_path), "cpu", "auto")
    executor = GpuExecutor(model, "m", 300, TURNS_MAX, DeviceApi(host_copier, limited), print)
    record_all(executor)
    assert repeats.num_recorded == 4
    found = reasons(executor)
    say(executor, [2, 30])
    assert "memory" in found
    executor.close()
