"""Workers as processes whose steps take a kernel's time, and the frontend that plays to them."""

import asyncio
import doctest
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from loadtest.papers import kernels
from loadtest.papers.kernel_worker import KernelExecutor
from loadtest.papers.kernels import KERNELS, Kernel
from loadtest.papers.llm_servers import MS, Request, adapters_of
from loadtest.papers.worker_processes import WorkerProcesses, open_processes
from loadtest.policies.most_idle import MostIdle
from services.worker.core.step import StepPlan
from services.worker.device.base.executor import Launched
from services.worker.device.copying.mover import Moved
from shared.ids import TurnId
from shared.profiles import PROFILES
from shared.wire.messages import (
    AdapterRef,
    PromptPull,
    StepOutput,
    TurnDelta,
    TurnRef,
    unpack_ints,
)
from tests.unit.worker.device.driver import Driver, make_core

T = TurnId("t")


@pytest.fixture
def driver() -> Iterator[Driver]:
    """Of a worker whose steps take 2 ms for each row and rank."""
    moved: Queue[Moved] = Queue()
    kernel = Kernel("padded", 0.0, 2.0, 0.0)
    executor = KernelExecutor(kernel, PROFILES["zero"], "none", moved.put)
    yield Driver(make_core(executor), executor, adapters="", moved=moved)
    executor.close()


def test_a_step_takes_what_the_kernel_says_of_its_ranks(driver: Driver) -> None:
    """Adapters are there without files."""
    took: list[tuple[int, float]] = []
    launch = driver.executor.launch

    def launched(plan: StepPlan) -> Launched:
        finished = launch(plan)
        took.append((plan.num_rows, finished.result().duration_ns / MS))
        return finished

    driver.executor.launch = launched  # type: ignore[method-assign]
    for name, lora_rank in (("a", 1), ("b", 8)):
        ref = AdapterRef(adapter_hash=name * 32, lora_rank=lora_rank, ranks={"emulated": lora_rank})
        driver.submit(name, [1, 2, 3], ref, max_tokens=4, ignore_eos=True)
    driver.run()
    assert len(driver.tokens("a")) == len(driver.tokens("b")) == 4
    assert (2, 2.0 * 2 * 8) in took, "both rows as the largest rank"
    assert {each for each in took if each[0] == 1} <= {(1, 2.0), (1, 16.0)}


def test_every_token_of_every_request_comes_from_real_processes() -> None:
    adapters = adapters_of([8, 64])
    requests = [Request(n * 20 * MS, adapters[n % 2], 5, 3 + n) for n in range(6)]

    async def scenario() -> WorkerProcesses:
        async with open_processes("BGMV", 1.0, 2) as processes:
            await processes.load(adapters)
            await processes.play(MostIdle, requests, 36.0)
        return processes

    processes = asyncio.run(scenario())
    assert [each.num_made for each in requests] == [each.num_output for each in requests]
    assert processes.num_failed == 0 and processes.steps.num
    assert processes.steps.kernel_ms >= KERNELS["BGMV"].ms([8], 0) * processes.steps.num


def with_a_turn() -> WorkerProcesses:
    """A frontend of which nothing is sent, with one request of five tokens."""
    processes = WorkerProcesses(Path(), {}, None, KERNELS["BGMV"])  # type: ignore[arg-type]
    processes._take(T, Request(0, adapters_of([8])[0], 3, 5))
    return processes


def pull(processes: WorkerProcesses, attempt: int, *, is_ahead: bool = False) -> Any:
    ref = TurnRef(turn_id=T, attempt=attempt)
    asked = PromptPull(turns=[ref], is_ahead=is_ahead)
    (prompt,) = asyncio.run(processes._on_pull(asked)).prompts
    return prompt


def say(processes: WorkerProcesses, attempt: int, *tokens: int, finish: Any = None) -> None:
    delta = TurnDelta(turn_id=T, attempt=attempt, index=0, tokens=list(tokens), finish=finish)
    processes._on_output(StepOutput(deltas=[delta]))


def test_a_turn_that_moves_goes_on_from_what_it_said() -> None:
    async def scenario() -> WorkerProcesses:
        return with_a_turn()

    processes = asyncio.run(scenario())
    request = processes._turns[T].request
    assert pull(processes, 7).num_generated == 0
    say(processes, 7, 70, 71)
    assert pull(processes, 8, is_ahead=True).num_generated == 2
    say(processes, 7, 72)
    prompt = pull(processes, 8)
    assert prompt.num_generated == 3 and unpack_ints(prompt.tokens)[3:] == [70, 71, 72]
    say(processes, 7, 99)
    assert pull(processes, 7).gone, "it runs elsewhere"
    say(processes, 8, 73, 74, finish="length")
    assert (request.num_made, processes.num_moved, processes.num_failed) == (5, 1, 0)
    assert pull(processes, 9).gone, "it is over"


def test_examples() -> None:
    results = doctest.testmod(kernels)
    assert results.attempted and not results.failed
