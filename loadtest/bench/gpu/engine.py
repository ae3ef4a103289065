"""The production runner and executor on a model of the whole shape: turns that come at once."""

import math
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from loadtest.bench.gpu.models import GpuShape, make_executor, record_all, wait_registered
from loadtest.bench.gpu.timing import rest
from loadtest.bench.lora.made import MadeAdapter
from loadtest.in_process_engine import InProcessEngine, Moves, some_prompt
from loadtest.local_store import LocalStore
from services.worker.core.step import StepPlan
from services.worker.device.decoder.loaded_model import LoadedModel
from services.worker.device.gpu.gpu_executor import GpuExecutor
from services.worker.device.gpu.launched import GpuLaunched
from shared.adapters.layout import layout_image
from shared.blocks import BLOCK_TOKENS

SPARE_BLOCKS = 8

Refs = Sequence[MadeAdapter | None]
"""What turns run on, in turn; None: the base model."""


class BenchEngine:
    """An executor that is measured, and engines on it, each with an empty pool.

    Args:
        adapters: all in one folder, under their hashes.
        thread: that launches.

    Attributes:
        moves: what the executor reports to.
    """

    def __init__(
        self,
        model: LoadedModel,
        shape: GpuShape,
        adapters: Sequence[MadeAdapter],
        thread: ThreadPoolExecutor,
    ) -> None:
        self.shape = shape
        self.adapters = adapters
        self.moves = Moves()
        self._thread = thread
        self._num_prompts = 0
        num_pages = _num_blocks(model, shape, adapters) * shape.num_layers
        self.executor: GpuExecutor = make_executor(model, num_pages, max(shape.batches), self.moves)
        self._device = model.device

    def close(self) -> None:
        """Close the executor."""
        self.executor.close()

    def prompt(self, length: int) -> list[int]:
        """One that was not there before."""
        self._num_prompts += 1
        return some_prompt(self._num_prompts, length, self.shape.vocab)

    def new(self, store: LocalStore | None = None, num_pages: int = 0) -> InProcessEngine:
        """An engine with an empty pool, of so many pages or of all."""
        self.moves.engine = None
        rest(self._device)
        return InProcessEngine(
            self.executor,
            self._thread,
            self.executor.prefill_tokens_max,
            turns_running_max=max(self.shape.batches),
            store=store,
            moves=self.moves,
            adapters_path=str(self.adapters[0].folder.parent),
            num_pages=num_pages,
        )

    def new_store(self, folder: Path, num_blocks: int) -> LocalStore:
        """Host memory for so many blocks, ready for copies."""
        info = self.executor.info
        store = LocalStore(folder, num_blocks * info.num_layers, info.page_bytes)
        self.executor.mover.prepare(store.arena)
        wait_registered(self.executor.copier, store.arena)
        return store

    # Figures.

    def turns(self, rounds: int) -> dict[str, float]:
        """Prompts whose whole blocks are in the pool, decoded at several sizes of batches: on the
        base model, on adapters of their own, and on one."""
        figures: dict[str, float] = {}
        kinds: dict[str, Refs] = {
            "decode": [None], "adapters": self.adapters, "one_adapter": self.adapters[:1],
        }  # fmt: skip
        for kind, on in kinds.items():
            engine = self.new()
            for each in on:
                engine.submit(self.prompt(2), 1, None if each is None else each.ref)
            engine.run()
            num_resident = len(engine.core.adapters.resident())
            assert num_resident == sum(each is not None for each in on), "adapters do not fit"
            record_all(self.executor)
            prompts = [self.prompt(self.shape.context) for _ in range(max(self.shape.batches))]
            for num_turns in self.shape.batches:
                batch = _Batch(self, engine, prompts[:num_turns], on)
                figures |= batch.measure(kind, rounds)
        return figures

    def prompts(self, rounds: int) -> dict[str, float]:
        """First tokens of new prompts: short, long, and many long ones at once."""
        shape = self.shape
        short_s = statistics.median(self._first_s([shape.short]) for _ in range(rounds + 2))
        long_s = statistics.median(self._first_s([shape.prefill]) for _ in range(rounds))
        many_s = self._first_s([shape.prefill] * shape.prompts)
        return {
            "first_short_ms": short_s * 1e3,
            "prompt_ms": long_s * 1e3,
            "prompts_tokens_per_s": shape.prompts * shape.prefill / many_s,
        }

    def write_behind(self, folder: Path) -> dict[str, float]:
        """Decoding while what was computed is copied to the arena, beside decoding alone before and
        after."""
        shape = self.shape
        blocks = -(-(shape.context + shape.new_tokens) // BLOCK_TOKENS) + 1
        store = self.new_store(folder, max(shape.batches) * blocks)
        before_s, written_s, after_s = (self._decode_s(each) for each in (None, store, None))
        store.close()
        return {"write_behind_share": 2 * written_s / (before_s + after_s) - 1.0}

    def host_share(self) -> dict[str, float]:
        """Shares of a decode step of the largest batch in which the host launched, and in which
        the device was idle."""
        launching_s: list[float] = []
        launch = self.executor.launch

        def timed(plan: StepPlan) -> GpuLaunched:
            started = time.perf_counter()
            launched = launch(plan)
            if plan.num_tokens == plan.num_rows:
                launching_s.append(time.perf_counter() - started)
            return launched

        self.executor.launch = timed  # type: ignore[method-assign]
        try:
            engine = self.new()
            step_s = self._decode_s(None, engine)
        finally:
            self.executor.launch = launch  # type: ignore[method-assign]
        device_time = engine.core.steps.device_time
        return {
            "host_share": statistics.median(launching_s) / step_s,
            "idle_share": device_time.idle_ns / (device_time.busy_ns + device_time.idle_ns),
        }

    def _first_s(self, lengths: Sequence[int]) -> float:
        """Seconds to the first tokens of new prompts, on an empty pool."""
        engine = self.new()
        for length in lengths:
            engine.submit(self.prompt(length), 1)
        engine.run()
        return engine.first_s()

    def _decode_s(self, store: LocalStore | None, engine: InProcessEngine | None = None) -> float:
        """Seconds of a step of the largest batch, behind new prompts."""
        engine = engine or self.new(store)
        for _ in range(max(self.shape.batches)):
            engine.submit(self.prompt(self.shape.context), self.shape.new_tokens)
        engine.run()
        return statistics.median(b - a for a, b in pairwise(engine.times_ns())) / 1e9


class _Batch:
    """Turns that come at once, again and again."""

    def __init__(
        self, bench: BenchEngine, engine: InProcessEngine, prompts: list[list[int]], on: Refs
    ) -> None:
        self._bench = bench
        self._engine = engine
        self._prompts = prompts
        self._on = on

    def measure(self, kind: str, rounds: int) -> dict[str, float]:
        """Medians, of turns and then of rounds."""
        num_turns, num_tokens = len(self._prompts), self._bench.shape.new_tokens
        self._run(1)
        self._run(2)
        token_s, all_s, first_s = [], [], []
        for _ in range(rounds):
            self._run(num_tokens)
            turns = self._engine.turns.values()
            token_s.append(statistics.median(turn.token_s for turn in turns))
            first_s.append(statistics.median(turn.first_s for turn in turns))
            began_ns = min(turn.began_ns for turn in turns)
            all_s.append((max(turn.sent_ns[-1] for turn in turns) - began_ns) / 1e9)
        figures = {f"{kind}_ms_{num_turns}": statistics.median(token_s) * 1e3}
        if kind == "decode":
            figures[f"first_cached_ms_{num_turns}"] = statistics.median(first_s) * 1e3
            figures[f"tokens_per_s_{num_turns}"] = num_turns * num_tokens / statistics.median(all_s)
        return figures

    def _run(self, num_tokens: int) -> None:
        for number, prompt in enumerate(self._prompts):
            on = self._on[number % len(self._on)]
            self._engine.submit(prompt, num_tokens, None if on is None else on.ref)
        self._engine.run()


def _num_blocks(model: LoadedModel, shape: GpuShape, adapters: Sequence[MadeAdapter]) -> int:
    """Of a pool that every figure fits in."""
    assert model.lora is not None, "the model takes adapters"
    of_turn = math.ceil((shape.context + shape.new_tokens) / BLOCK_TOKENS) + 2
    of_prompt = math.ceil(shape.prefill / BLOCK_TOKENS) + 1
    of_session = math.ceil(shape.history / BLOCK_TOKENS) + 2
    turns = max(
        max(shape.batches) * of_turn,
        shape.prompts * of_prompt,
        shape.sessions_in_pool * of_session,
    )
    images = sum(layout_image(model.lora, each.ref.ranks).num_blocks for each in adapters)
    return turns + images + SPARE_BLOCKS
