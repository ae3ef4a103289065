"""The production runner and executor on a model of the whole shape."""

import math
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from loadtest.bench.gpu.ceilings import rounded
from loadtest.bench.gpu.models import GpuShape, make_executor, make_model, wait_registered
from loadtest.bench.gpu.timing import median_s, rest
from loadtest.in_process_engine import InProcessEngine, Moves, some_prompt
from loadtest.local_store import LocalStore
from services.worker.core.step import StepPlan
from services.worker.device.gpu.gpu_executor import GpuExecutor
from services.worker.device.gpu.launched import GpuLaunched
from shared.blocks import BLOCK_TOKENS

STEPS = 24
NEW_TOKENS = 16  # that a returning turn brings beside its history


def measure_engine(
    device: torch.device,
    shape: GpuShape,
    ceilings: dict[str, float],
    folder: Path,
    rounds: int,
) -> dict[str, Any]:
    """Decode and prefill beside their bounds, a returning turn, and what write-behind costs."""
    model = make_model(device, shape)
    rows_max = max(shape.batches)
    tokens = rows_max * (shape.context + STEPS + 2 * BLOCK_TOKENS)
    tokens = max(tokens, 2 * shape.prefill, 2 * shape.history)
    num_pages = math.ceil(tokens / BLOCK_TOKENS) * shape.num_layers
    moves = Moves()
    executor = make_executor(model, num_pages, rows_max, moves)
    with ThreadPoolExecutor(1) as thread:
        figures = _measure(
            _Engine(device, shape, executor, moves, thread), ceilings, folder, rounds
        )
    executor.close()
    return rounded(figures)


def _measure(
    bench: "_Engine",
    ceilings: dict[str, float],
    folder: Path,
    rounds: int,
) -> dict[str, float]:
    shape = bench.shape
    figures: dict[str, float] = {}
    for rows in shape.batches:
        step_s, host_share, idle_share = bench.decode(rows)
        kv_bytes = rows * shape.context * shape.token_bytes
        bound_s = (shape.weight_bytes + kv_bytes) / ceilings["memory_gb_per_s"] / 1e9
        figures[f"decode_ms_batch_{rows}"] = step_s * 1e3
        figures[f"decode_share_of_memory_batch_{rows}"] = bound_s / step_s
        figures[f"decode_host_share_batch_{rows}"] = host_share
        figures[f"decode_idle_share_batch_{rows}"] = idle_share
    prefill_s = statistics.median(bench.first_token(shape.prefill) for _ in range(rounds))
    length = shape.prefill
    scores = 4 * shape.num_layers * shape.num_heads * shape.head_dim * length * (length + 1) / 2
    flops = shape.matmul_flops * length + scores
    figures["prefill_ms"] = prefill_s * 1e3
    figures["prefill_share_of_matrix"] = flops / prefill_s / 1e12 / ceilings["matrix_tflops"]
    figures |= bench.returning(folder, rounds)
    figures |= bench.write_behind(folder)
    return figures


class _Engine:
    def __init__(
        self,
        device: torch.device,
        shape: GpuShape,
        executor: GpuExecutor,
        moves: Moves,
        thread: ThreadPoolExecutor,
    ) -> None:
        self._device = device
        self.shape = shape
        self._thread = thread
        self._executor = executor
        self._moves = moves
        self._num_prompts = 0

    def decode(self, rows: int, store: LocalStore | None = None) -> tuple[float, float, float]:
        """Seconds of a step; shares of it in which the host launched, and the device was idle."""
        engine = self._new_engine(64 * 1024, store)
        for _ in range(rows):
            engine.submit(self._prompt(self.shape.context), STEPS + 2)
        launching_s: list[float] = []
        launch = self._executor.launch

        def timed(plan: StepPlan) -> GpuLaunched:
            started = time.perf_counter()
            launched = launch(plan)
            launching_s.append(time.perf_counter() - started)
            return launched

        self._executor.launch = timed  # type: ignore[method-assign]
        try:
            engine.run()
        finally:
            self._executor.launch = launch  # type: ignore[method-assign]
        at_ns = engine.times_ns(rows)
        step_s = statistics.median(b - a for a, b in pairwise(at_ns)) / 1e9
        device_time = engine.core.steps.device_time
        idle = device_time.idle_ns / (device_time.busy_ns + device_time.idle_ns)
        return step_s, statistics.median(launching_s[2:]) / step_s, idle

    def first_token(self, length: int) -> float:
        """Seconds to the first token of a new prompt."""
        return self._first_token(self._prompt(length), None)

    def returning(self, folder: Path, rounds: int) -> dict[str, float]:
        """A turn whose history is in the arena, and what it is made of: loading alone, computing
        alone, and computing the history again."""
        shape = self.shape
        num_blocks = shape.history // BLOCK_TOKENS
        store = self._new_store(folder, 2 * num_blocks)
        history = self._prompt(shape.history)
        self._first_token(history, store)
        prompts = [[*history, *self._prompt(NEW_TOKENS)] for _ in range(rounds + 2)]
        returned_s = statistics.median(self._first_token(each, store) for each in prompts)
        recomputed_s = statistics.median(self.first_token(len(prompts[0])) for _ in range(rounds))
        load_s = self._load_s(store, num_blocks, rounds)
        compute_s = self._resident_s(prompts)
        store.close()
        slower_s = max(load_s, compute_s)
        return {
            "returning_ms": returned_s * 1e3,
            "returning_load_alone_ms": load_s * 1e3,
            "returning_compute_alone_ms": compute_s * 1e3,
            "returning_recomputed_ms": recomputed_s * 1e3,
            "returning_over_slower_part": returned_s / slower_s,
        }

    def write_behind(self, folder: Path) -> dict[str, float]:
        """Decoding while all that was computed is copied to the arena, beside decoding alone."""
        rows = max(self.shape.batches)
        blocks = rows * (self.shape.context // BLOCK_TOKENS + 2)
        store = self._new_store(folder, blocks)
        alone_s, _, _ = self.decode(rows)
        written_s, _, _ = self.decode(rows, store)
        store.close()
        return {"write_behind_costs_share_of_decode": written_s / alone_s - 1.0}

    def _first_token(self, prompt: list[int], store: LocalStore | None) -> float:
        """On an empty pool."""
        engine = self._new_engine(self._executor.prefill_tokens_max, store)
        rest(self._device)
        started_ns = time.monotonic_ns()
        engine.submit(prompt, 1)
        engine.run()
        return engine.first_s(started_ns)

    def _resident_s(self, prompts: list[list[int]]) -> float:
        """First token where the history is in the pool."""
        engine = self._new_engine(self._executor.prefill_tokens_max, None)
        took_s = []
        for prompt in prompts:
            started_ns = time.monotonic_ns()
            engine.submit(prompt, 1)
            engine.run()
            took_s.append(engine.first_s(started_ns))
        return statistics.median(took_s[1:])

    def _load_s(self, store: LocalStore, num_blocks: int, rounds: int) -> float:
        """Pages of all layers, a layer at a time, as the mover starts them."""
        layers = self.shape.num_layers
        copier = self._executor.copier
        arena_pages = torch.randperm(num_blocks * layers).tolist()
        pool_pages = torch.randperm(num_blocks * layers).tolist()

        def load_all() -> None:
            copies = [
                copier.load(
                    store.arena,
                    arena_pages[at : at + num_blocks],
                    pool_pages[at : at + num_blocks],
                )
                for at in range(0, num_blocks * layers, num_blocks)
            ]
            for copy in copies:
                copy.wait()

        return median_s(self._device, load_all, rounds)

    def _new_engine(self, budget: int, store: LocalStore | None) -> InProcessEngine:
        self._moves.engine = None
        return InProcessEngine(
            self._executor,
            self._thread,
            budget,
            turns_running_max=max(self.shape.batches),
            store=store,
            moves=self._moves,
        )

    def _new_store(self, folder: Path, num_blocks: int) -> LocalStore:
        info = self._executor.info
        store = LocalStore(folder, num_blocks * info.num_layers, info.page_bytes)
        self._executor.mover.prepare(store.arena)
        wait_registered(self._executor.copier, store.arena)
        return store

    def _prompt(self, length: int) -> list[int]:
        self._num_prompts += 1
        return some_prompt(self._num_prompts, length, self.shape.vocab)
