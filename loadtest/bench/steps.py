"""Steps of a model on the CPU, planned here: with any history and any adapters, without computing
what came before.

What a step costs does not depend on what histories and weights say. So the pool is filled with
random numbers, and page tables say that rows have their history and adapters in it. A step that a
core would have planned after minutes of prompts takes as long as that step.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from kernels.sgmv.interface import NO_ADAPTER
from loadtest.models import SEED, LlamaShape
from services.worker.core.step import ImageEntry, Ints, RowSampling, StepPlan, TableEntries
from services.worker.device.cpu.torch_executor import TorchExecutor
from services.worker.device.decoder.attention import ATTENTION
from services.worker.device.decoder.loaded_model import LoadedModel, prepare_model
from services.worker.device.forward import use_own_forward
from services.worker.device.layers import speed_up
from shared.adapters.layout import layout_image
from shared.blocks import BLOCK_TOKENS
from shared.ids import TurnId
from shared.wire.messages import SamplingParams

GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
DEVIATION = 0.02  # of the random numbers: products of them stay small
NUM_DRAWN = 1 << 22  # of them, again and again


def make_llama(shape: LlamaShape, dtype: torch.dtype) -> LoadedModel:
    """A model of this shape as a worker has it, made of random weights in memory."""
    model = prepare_model(_random_llama(shape, dtype), shape.name)
    if speed_up(model.module) is None:
        model = prepare_model(_random_llama(shape, dtype), shape.name)
    else:
        use_own_forward(model)
    model.fingerprint = f"bench {shape.name}"
    model.let_adapters()
    return model


def _random_llama(shape: LlamaShape, dtype: torch.dtype) -> object:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(SEED)
    return AutoModelForCausalLM.from_config(
        shape.config(), dtype=dtype, attn_implementation=ATTENTION
    )


class PlannedSteps:
    """Runs steps in the thread that loaded the model, where this is to be made, too.

    Args:
        rows_max, context_max: of a step.
        ranks: of adapters that are there, on all linear layers; an adapter goes by its place here.
    """

    def __init__(
        self, model: LoadedModel, rows_max: int, context_max: int, ranks: Sequence[int] = ()
    ) -> None:
        card = model.lora
        assert card is not None, "the model takes adapters"
        blocks = -(-context_max // BLOCK_TOKENS)
        ranks_of = [{each.name: rank for each in card.targets} for rank in ranks]
        counts = [layout_image(card, each).num_blocks for each in ranks_of]
        num_blocks = rows_max * blocks + sum(counts)
        self._vocab_size = model.vocab_size
        self._executor = TorchExecutor(
            model, "bench", num_blocks * model.num_layers, lambda _: None
        )
        self._executor.warm_up()
        _fill(self._executor._pool)
        order = np.random.default_rng(SEED).permutation(num_blocks * model.num_layers)
        pages: Ints = order.astype(np.int32).reshape(num_blocks, model.num_layers)
        slots, numbers = np.divmod(np.arange(rows_max * blocks, dtype=np.int32), blocks)
        begins = np.cumsum([len(slots), *counts]).tolist()
        self._enter(
            TableEntries(slots, numbers, pages[: len(slots)]),
            [
                ImageEntry(line, f"{line:032x}", each, pages[begins[line] : begins[line + 1]])
                for line, each in enumerate(ranks_of)
            ],
        )

    def ms(self, adapters: Sequence[int], context: int, new: int = 1) -> float:
        """Milliseconds of one step.

        Args:
            adapters: of each row; `NO_ADAPTER`: the base model's. Rows of one adapter follow each
                other.
            context: tokens of each row, with the new ones.
            new: tokens of each row: 1 for decodes, `context` for whole prompts.
        """
        plan = self._plan(adapters, context, new)
        started = time.perf_counter()
        result = self._executor.launch(plan).result()
        took_s = time.perf_counter() - started
        assert not result.failed and not result.broken, "a step failed"
        assert all(each is not None for each in result.sampled), "a row has no token"
        return took_s * 1e3

    def close(self) -> None:
        self._executor.close()

    def _enter(self, entries: TableEntries, images: list[ImageEntry]) -> None:
        """Tell the executor's tables where everything lies, with a step of one token."""
        plan = replace(self._plan([NO_ADAPTER], 1, 1), entries=entries, images=images)
        self._executor.launch(plan).result()

    def _plan(self, adapters: Sequence[int], context: int, new: int) -> StepPlan:
        rows = len(adapters)
        tokens = np.random.default_rng(SEED).integers(0, self._vocab_size, rows * new)
        nothing: Ints = np.zeros(0, np.int32)
        return StepPlan(
            turn_ids=[TurnId(str(row)) for row in range(rows)],
            slots=np.arange(rows, dtype=np.int32),
            tokens=tokens.astype(np.int32),
            following=nothing,
            carried=nothing,
            query_starts=new * np.arange(rows + 1, dtype=np.int32),
            context_lens=np.full(rows, context, np.int32),
            sampling=[RowSampling(GREEDY, 0)] * rows,
            scoring={},
            awaited={},
            entries=TableEntries(nothing, nothing, nothing.reshape(0, 0)),
            adapters=np.array(adapters, np.int32),
        )


def medians(works: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Of what works say that they took, which take turns; what the first of `rounds + 1` says does
    not count."""
    took: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(1 + rounds):
        for name, work in works.items():
            took[name].append(work())
    return {name: statistics.median(each[1:]) for name, each in took.items()}


def _fill(pool: torch.Tensor) -> None:
    """With random numbers: bits of any kind would be slow ones, and zeros too fast."""
    flat = pool.view(-1)
    generator = torch.Generator().manual_seed(SEED)
    drawn = torch.randn(NUM_DRAWN, generator=generator).mul_(DEVIATION).to(pool.dtype)
    for begin in range(0, len(flat), NUM_DRAWN):
        part = flat[begin : begin + NUM_DRAWN]
        part.copy_(drawn[: len(part)])
