"""NATS, the production scheduler and emulated workers as processes, with this process as their
frontend: plays the requests of `llm_servers` to them, in real time.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from cli.base.children import free_port, python_path, start_child, stop_child
from loadtest.papers.kernels import KERNELS, Kernel
from loadtest.papers.llm_servers import MS, M, Request
from loadtest.servers import start_nats, wait_for_port
from loadtest.starting import Waiting
from services.scheduler.core import PlacementPolicy
from shared.adapters.layout import layout_image
from shared.bus import Bus
from shared.errors import PeerUnavailable
from shared.ids import FrontendId, TurnId, WorkerId, new_id
from shared.runtime.tasks import wait_set
from shared.wire.messages import (
    AdapterRef,
    Empty,
    ModelCard,
    Prompt,
    PromptPull,
    PromptReply,
    SamplingParams,
    SchedulerStatus,
    StepOutput,
    TurnCancel,
    TurnDelta,
    TurnFailed,
    TurnsStart,
    TurnsSubmit,
    TurnStart,
    TurnSubmit,
    WorkerReport,
    pack_ints,
)
from shared.wire.subjects import (
    PROMPT_PULL,
    SCHEDULER_STATUS,
    STEP_OUTPUT,
    TURN_CANCEL,
    TURN_FAILED,
    TURN_SUBMIT,
    WORKER_REPORT,
    WORKER_START,
)

WARM_TIMEOUT_S = 60.0
DRAIN_S = 120.0  # after the last request, until what still runs is given up
CANCEL_TIMEOUT_S = 10.0
LOOK_S = 0.1
BYTES = 256  # the demo tokenizer's tokens for them
LOADED_TOGETHER = 32  # turns
TAUGHT_TOGETHER = (6, 20)
TAUGHT_PROMPT, TAUGHT_TOKENS = 8, 6
SHARD = "0"


@dataclass(slots=True)
class _Turn:
    """A request that runs.

    Attributes:
        generated: tokens so far, of all attempts.
        attempt: the latest that pulled its prompt; 0: none.
    """

    request: Request
    prompt: list[int]
    generated: list[int] = field(default_factory=list)
    attempt: int = 0


@dataclass(slots=True)
class StepsSeen:
    """How long steps took, from one message of a worker to the next, and what their kernel says."""

    num: int = 0
    took_ms: float = 0.0
    kernel_ms: float = 0.0
    longer: list[float] = field(default_factory=list)

    def add(self, took_ms: float, kernel_ms: float) -> None:
        """One step."""
        self.num += 1
        self.took_ms += took_ms
        self.kernel_ms += kernel_ms
        self.longer.append(took_ms / kernel_ms - 1)

    @property
    def mean_longer(self) -> float:
        """By what share all of them together took longer."""
        return self.took_ms / max(self.kernel_ms, 1e-9) - 1

    @property
    def p99_longer(self) -> float:
        """By what share the slowest took longer."""
        return float(np.percentile(self.longer, 99)) if self.longer else 0.0


class WorkerProcesses:
    """Make with `open_processes`.

    Args:
        kernel: its steps, as the workers take them.
    """

    def __init__(self, directory: Path, env: dict[str, str], bus: Bus, kernel: Kernel) -> None:
        self._directory = directory
        self._env = env
        self._bus = bus
        self._kernel = kernel
        self._frontend = FrontendId(new_id("fe"))
        self._turns: dict[TurnId, _Turn] = {}
        self._is_over = asyncio.Event()
        self._reports: dict[WorkerId, WorkerReport] = {}
        self._rng = np.random.default_rng(20)
        self.steps = StepsSeen()
        self.num_failed = self.num_moved = 0

    async def listen(self) -> None:
        """Be the frontend."""
        await self._bus.serve(PROMPT_PULL, self._on_pull, self._frontend)
        await self._bus.subscribe(STEP_OUTPUT, self._on_output, self._frontend)
        await self._bus.subscribe(TURN_FAILED, self._on_failed, self._frontend)
        await self._bus.subscribe(WORKER_REPORT, self._on_report)
        await self._bus.flush()

    async def wait_workers(self, num: int) -> None:
        """Until so many are ready."""
        waiting = Waiting(f"{num} workers are ready")
        while sum(each.state == "ready" for each in self._reports.values()) < num:
            waiting.check()
            await asyncio.sleep(LOOK_S)

    async def load(self, adapters: Sequence[AdapterRef]) -> None:
        """Have every worker hold all of these."""
        for at in range(0, len(adapters), LOADED_TOGETHER):
            await self._start_everywhere(adapters[at : at + LOADED_TOGETHER], 1)

    async def teach(self, adapters: Sequence[AdapterRef]) -> None:
        """Have every worker see what steps of each rank take."""
        for lora_rank in sorted({each.lora_rank for each in adapters}):
            of_rank = [each for each in adapters if each.lora_rank == lora_rank]
            for num in TAUGHT_TOGETHER:
                await self._start_everywhere(of_rank[:num], TAUGHT_TOKENS)

    async def play(
        self, policy: type[PlacementPolicy], requests: Sequence[Request], slo_ms: float
    ) -> None:
        """Send them to a new scheduler as they come; returns when all are over or given up, with
        what was seen in them."""
        self.steps, self.num_failed, self.num_moved = StepsSeen(), 0, 0
        env = {
            **self._env,
            "SYMPHONY_SCHEDULER_POLICY": f"{policy.__module__}:{policy.__name__}",
        }
        command = [sys.executable, "-m", "services.scheduler"]
        log_path = self._directory / "scheduler.log"
        scheduler = start_child(command, log_path=log_path, env=env)
        try:
            await self._wait_placing()
            began = time.monotonic()
            for number, request in enumerate(requests):
                await asyncio.sleep(max(began + request.at_ns / 1e9 - time.monotonic(), 0.0))
                await self._submit(TurnId(f"{policy.__name__}-{number}"), request, slo_ms)
            await self._wait_over(DRAIN_S)
            await self._cancel_all()
        finally:
            stop_child(scheduler)

    async def _start_everywhere(self, adapters: Sequence[AdapterRef], num_output: int) -> None:
        """A turn of so many tokens on each adapter, at every worker, at the same time."""
        for worker_id in self._reports:
            starts = [
                TurnStart(
                    turn_id=self._take(
                        TurnId(new_id("turn")), Request(0, each, TAUGHT_PROMPT, num_output)
                    ),
                    frontend_id=self._frontend, model_id=M, num_prompt_tokens=TAUGHT_PROMPT,
                    adapter=self._true(each),
                )
                for each in adapters
            ]  # fmt: skip
            await self._bus.publish(WORKER_START, TurnsStart(turns=starts), worker_id)
        if not await self._wait_over(WARM_TIMEOUT_S):
            raise PeerUnavailable(f"{len(self._turns)} turns did not end: see a worker's log")

    async def _submit(self, turn_id: TurnId, request: Request, slo_ms: float) -> None:
        submit = TurnSubmit(
            turn_id=self._take(turn_id, request), frontend_id=self._frontend, model_id=M,
            num_prompt_tokens=request.num_prompt, adapter=self._true(request.adapter),
            slo_tpot_ms=slo_ms,
        )  # fmt: skip
        await self._bus.publish(TURN_SUBMIT, TurnsSubmit(turns=[submit]), SHARD)

    def _take(self, turn_id: TurnId, request: Request) -> TurnId:
        prompt: list[int] = self._rng.integers(BYTES, size=request.num_prompt).tolist()
        self._turns[turn_id] = _Turn(request, prompt)
        self._is_over.clear()
        return turn_id

    def _true(self, adapter: AdapterRef) -> AdapterRef:
        """As a deployment names it: with what its image is made of."""
        lora = self._card.lora
        assert lora is not None
        ranks = {target.name: adapter.lora_rank for target in lora.targets}
        num_blocks = layout_image(lora, ranks).num_blocks
        return replace(
            adapter, ranks=ranks, image_bytes=num_blocks * lora.num_layers * lora.page_bytes
        )

    @property
    def _card(self) -> ModelCard:
        return next(iter(self._reports.values())).models[0]

    async def _wait_placing(self) -> None:
        """Until the scheduler knows all workers."""

        def knows_all(replies: list[SchedulerStatus]) -> bool:
            return any(
                sum(worker.state == "ready" for worker in each.workers) == len(self._reports)
                for each in replies
            )

        waiting = Waiting("the scheduler knows all workers")
        while not knows_all(await self._bus.gather(SCHEDULER_STATUS, Empty(), timeout_s=LOOK_S)):
            waiting.check()
            await asyncio.sleep(LOOK_S)

    async def _wait_over(self, timeout_s: float) -> bool:
        return not self._turns or await wait_set(self._is_over, timeout_s)

    async def _cancel_all(self) -> None:
        """Give up what still runs; returns once no worker holds a turn."""
        for turn_id in list(self._turns):
            await self._bus.publish(TURN_CANCEL, TurnCancel(turn_id=turn_id), SHARD)
        self._turns.clear()
        deadline = time.monotonic() + CANCEL_TIMEOUT_S
        while any(each.turns for each in self._reports.values()):
            if time.monotonic() > deadline:
                raise PeerUnavailable("turns that were cancelled did not end")
            await asyncio.sleep(LOOK_S)

    def _end(self, turn_id: TurnId) -> None:
        del self._turns[turn_id]
        if not self._turns:
            self._is_over.set()

    async def _on_pull(self, pull: PromptPull) -> PromptReply:
        prompts = []
        for ref in pull.turns:
            turn = self._turns.get(ref.turn_id)
            if turn is None or ref.attempt < turn.attempt:
                prompts.append(Prompt(turn_id=ref.turn_id, attempt=ref.attempt, gone=True))
                continue
            if not pull.is_ahead:
                self.num_moved += 0 < turn.attempt < ref.attempt
                turn.attempt = ref.attempt
            prompts.append(
                Prompt(
                    turn_id=ref.turn_id,
                    attempt=ref.attempt,
                    tokens=pack_ints([*turn.prompt, *turn.generated]),
                    num_generated=len(turn.generated),
                    sampling=SamplingParams(
                        max_tokens=turn.request.num_output, temperature=0.0, ignore_eos=True
                    ),
                )
            )
        return PromptReply(prompts=prompts)

    def _on_output(self, output: StepOutput) -> None:
        now_ns = time.monotonic_ns()
        deltas = [each for each in output.all() if self._is_of_now(each)]
        self._see_step([each for each in deltas if each.tokens], now_ns)
        for delta in deltas:
            turn = self._turns[delta.turn_id]
            request = turn.request
            if delta.tokens:
                turn.generated += delta.tokens
                request.num_made = len(turn.generated)
                request.first_ns = request.first_ns or now_ns
                request.last_ns = now_ns
            if delta.finish is not None:
                self.num_failed += delta.finish == "error"
                self._end(delta.turn_id)

    def _is_of_now(self, delta: TurnDelta) -> bool:
        turn = self._turns.get(delta.turn_id)
        return turn is not None and turn.attempt == delta.attempt

    def _see_step(self, deltas: list[TurnDelta], now_ns: int) -> None:
        """Of a step with turns that were in the one before it."""
        per_turn = Counter(each.turn_id for each in deltas)
        is_one_step = max(per_turn.values(), default=2) == 1
        going_on = [self._turns[each.turn_id] for each in deltas if each.cached_tokens is None]
        if not (going_on and is_one_step):
            return
        num_prompt = 0
        for each in deltas:
            if each.cached_tokens is not None:
                turn = self._turns[each.turn_id]
                num_prompt += len(turn.prompt) + len(turn.generated) - each.cached_tokens
        ranks = [self._turns[each.turn_id].request.adapter.lora_rank for each in deltas]
        before_ns = max(each.request.last_ns for each in going_on)
        self.steps.add((now_ns - before_ns) / MS, self._kernel.ms(ranks, num_prompt))

    def _on_failed(self, failed: TurnFailed) -> None:
        if failed.turn_id in self._turns:
            self.num_failed += 1
            self._end(failed.turn_id)

    def _on_report(self, report: WorkerReport) -> None:
        self._reports[report.worker_id] = report


@asynccontextmanager
async def open_processes(
    kernel: str, slower: float, num_workers: int
) -> AsyncIterator[WorkerProcesses]:
    """Start NATS and the workers; they end with the context.

    Args:
        kernel: in `KERNELS`.
        slower: times as long as that everything takes.

    Raises:
        PeerUnavailable: something does not start.
    """
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="symphony-testbed-")
        directory = Path(stack.enter_context(temporary))
        port = free_port()
        nats = start_nats(port, directory / "nats")
        stack.callback(stop_child, nats)
        wait_for_port(nats, port, "nats")
        env = {
            **os.environ,
            "PYTHONPATH": python_path(os.environ),
            "SYMPHONY_NATS_URL": f"nats://127.0.0.1:{port}",
            "SYMPHONY_DATA_DIR": str(directory / "data"),
            "SYMPHONY_HOST_ID": "testbed",
            "SYMPHONY_LOG_LEVEL": "warning",
        }
        bus = await Bus.connect(env["SYMPHONY_NATS_URL"], "testbed")
        processes = WorkerProcesses(directory, env, bus, KERNELS[kernel].slower(slower))
        await processes.listen()
        command = [sys.executable, "-m", "loadtest.papers.kernel_worker", kernel, str(slower)]
        for number in range(num_workers):
            log_path = directory / f"worker-{number}.log"
            own = {**env, "SYMPHONY_INSTANCE": str(number)}
            stack.callback(stop_child, start_child(command, log_path=log_path, env=own))
        await processes.wait_workers(num_workers)
        yield processes
        await bus.drain()
