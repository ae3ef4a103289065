"""Our side: the production core, step loop and executor, with hooks on every target."""

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from loadtest.bench.lora.made import MadeAdapter
from loadtest.in_process_engine import InProcessEngine, Moves, some_prompt
from services.worker.device.cpu.torch_executor import TorchExecutor
from services.worker.device.decoder.loaded_model import LoadedModel
from services.worker.device.model import load_model
from shared.adapters.layout import layout_image
from shared.blocks import BLOCK_TOKENS

DECODES_BUDGET = 64 * 1024  # prompt tokens in a step, so that all turns begin to decode together
SPARE_BLOCKS = 8

Rows = Sequence[MadeAdapter | None]
"""The adapter of each turn of a batch; None: the base model."""


class Ours:
    """A model that is loaded and served in `thread`.

    Attributes:
        model: what is served.
    """

    def __init__(self, source: str, thread: ThreadPoolExecutor) -> None:
        self._thread = thread
        self.model: LoadedModel = thread.submit(load_model, source, "cpu", "auto").result()
        self._moves = Moves()
        self._executor: TorchExecutor | None = None

    def open(self, adapters: Sequence[MadeAdapter], folder: Path, num_tokens: int) -> None:
        """Make a pool for these adapters' images and so many tokens.

        Args:
            folder: with all adapters under their hashes.
        """
        card = self.model.lora
        assert card is not None, "the model takes adapters"
        self._folder = folder
        num_blocks = -(-num_tokens // BLOCK_TOKENS) + SPARE_BLOCKS
        num_blocks += sum(layout_image(card, each.ref.ranks).num_blocks for each in adapters)
        num_pages = num_blocks * self.model.num_layers
        self._executor = self._thread.submit(self._load, num_pages).result()

    def start(
        self, adapters: Sequence[MadeAdapter], budget: int, turns_max: int | None = None
    ) -> "Serving":
        """Begin with an empty pool, and bring all of these adapters up.

        Args:
            budget: prompt tokens in a step, at most.
            turns_max: that run at once; None: as many as there are adapters.
        """
        assert self._executor is not None, "no pool"
        self._moves.engine = None
        engine = InProcessEngine(
            self._executor,
            self._thread,
            budget,
            turns_running_max=turns_max or max(len(adapters), 1),
            moves=self._moves,
            adapters_path=str(self._folder),
        )
        serving = Serving(engine, self.model.vocab_size)
        serving.bring_up(adapters)
        return serving

    def close(self) -> None:
        if self._executor is not None:
            self._executor.close()

    def _load(self, num_pages: int) -> TorchExecutor:
        executor = TorchExecutor(self.model, "bench", num_pages, self._moves)
        executor.warm_up()
        return executor


class Serving:
    """An engine that goes on from one measurement to the next, so that adapters stay where they
    are, and prompts that were computed need not be again."""

    def __init__(self, engine: InProcessEngine, vocab_size: int) -> None:
        self._engine = engine
        self._vocab_size = vocab_size
        self._num_prompts = 0

    def bring_up(self, adapters: Sequence[MadeAdapter]) -> None:
        """Have all of these in the pool.

        Raises:
            AssertionError: one of them is not there.
        """
        for each in adapters:
            self._engine.submit(some_prompt(0, 2, self._vocab_size), 1, each.ref)
        self._engine.run()
        here = set(self._engine.core.adapters.resident())
        lacking = [each.ref.name for each in adapters if each.ref.adapter_hash not in here]
        assert not lacking, f"adapters that were to be resident are not: {lacking}"

    def decode_ms(self, rows: Rows, context: int, steps: int) -> float:
        """The median step of a batch, each turn of which has `context` tokens and an own prompt."""
        engine = self._engine
        for number, adapter in enumerate(rows):
            prompt = some_prompt(number, context, self._vocab_size)
            engine.submit(prompt, steps + 2, None if adapter is None else adapter.ref)
        engine.run()
        # All prompts fit in one step; the first decode is warm-up.
        at_ns = engine.times_ns()
        assert len(at_ns) == steps + 1, "turns did not stay together"
        return statistics.median(after - before for before, after in pairwise(at_ns)) / 1e6

    def first_token_ms(self, adapter: MadeAdapter | None, length: int) -> float:
        """Of a new prompt."""
        self._num_prompts += 1
        prompt = some_prompt(-self._num_prompts, length, self._vocab_size)
        engine = self._engine
        engine.submit(prompt, 1, None if adapter is None else adapter.ref)
        engine.run()
        return engine.first_s() * 1e3

    def generate_s(self, rows: Rows, prompts: list[list[int]], counts: Sequence[int]) -> float:
        """Seconds in which turns that come at once say so many tokens each; one that ends makes
        room for the next."""
        started = time.monotonic()
        for adapter, prompt, count in zip(rows, prompts, counts, strict=True):
            self._engine.submit(prompt, count, None if adapter is None else adapter.ref)
        self._engine.run()
        return time.monotonic() - started

    def greedy(self, rows: Rows, prompts: list[list[int]], count: int) -> list[list[int]]:
        """What turns say in one batch, each `count` tokens."""
        turns = [
            self._engine.submit(prompt, count, None if adapter is None else adapter.ref)
            for adapter, prompt in zip(rows, prompts, strict=True)
        ]
        self._engine.run()
        return [turn.generated for turn in turns]
