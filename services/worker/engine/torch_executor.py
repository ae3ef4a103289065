"""Runs step plans on a transformers model, on the CPU or on a GPU by the same code."""

import math
import time
from collections.abc import Callable

import numpy as np
import torch

from kernels.paged_attention import RaggedBatch
from services.worker.core.effects import LATE, Row, StepPlan, StepResult
from services.worker.engine.attention import StepContext
from services.worker.engine.executor import ModelInfo
from services.worker.engine.gate import PageGate
from services.worker.engine.model import LoadedModel
from services.worker.engine.mover import HostCopier, KvMover, PageCopier
from services.worker.engine.sampler import sample, token_logprobs
from shared.blocks import BLOCK_TOKENS
from shared.messages import TokenLogprobs

NOT_FINITE = "the model's numbers for this turn are not finite"
OnLoaded = Callable[[list[int], list[int], int, int], None]


class TorchExecutor:
    """A loaded model with its page pool and its mover.

    Args:
        num_pages: pool size; ``num_pages * page_bytes`` bytes of device memory.
        on_loaded: see `KvMover`.
    """

    def __init__(
        self, model: LoadedModel, model_id: str, num_pages: int, on_loaded: OnLoaded
    ) -> None:
        self._model = model
        self.prefill_tokens_max = 512 if model.device.type == "cpu" else 4096
        self.info = ModelInfo(
            model_id=model_id,
            source=model.source,
            fingerprint=model.fingerprint,
            max_model_len=model.max_model_len,
            num_layers=model.num_layers,
            page_bytes=model.page_bytes,
            num_pages=num_pages,
            vocab_size=model.vocab_size,
            end_token_ids=model.end_token_ids,
            block_tokens=BLOCK_TOKENS,
            sampling=model.sampling,
        )
        shape = (num_pages, 2, model.num_kv_heads, BLOCK_TOKENS, model.head_dim)
        self._pool = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self._keys, self._values = self._pool[:, 0], self._pool[:, 1]
        self.mover = KvMover(self._make_copier(), PageGate(num_pages), on_loaded)

    def execute(self, plan: StepPlan) -> StepResult:
        started_ns = time.monotonic_ns()
        writes = self.mover.begin_writes(plan, self.info.num_layers)
        if writes is not None:
            for index, write in enumerate(plan.writes):
                if write.row == LATE:
                    for layer in range(self.info.num_layers):
                        self.mover.store(writes, index, layer)
        result = StepResult(sampled=[None] * len(plan.rows))
        if plan.rows:
            with torch.inference_mode():
                step = self._context(plan)
                step.writes = writes
                self._forward(plan, step, result)
            result.failed = step.failed
            result.stall_ns = step.stall_ns
        if writes is not None:
            result.checksums = writes.wait()
        result.duration_ns = time.monotonic_ns() - started_ns
        return result

    def check_device(self) -> None:
        self.mover.check()
        one = torch.ones(1, device=self._model.device)
        assert (one + one).item() == 2.0, "the device miscounts"

    def close(self) -> None:
        self.mover.close()

    def _make_copier(self) -> PageCopier:
        if self._model.device.type == "cpu":
            raw = self._pool.view(torch.uint8).numpy().reshape(self.info.num_pages, -1)
            return HostCopier(raw)
        from services.worker.engine.cuda_copier import CudaCopier

        return CudaCopier(self._pool)

    def _context(self, plan: StepPlan) -> StepContext:
        device = self._model.device
        positions = np.concatenate([np.arange(row.start, row.end) for row in plan.rows])
        lengths = [row.end - row.start for row in plan.rows]
        row_of_token = np.repeat(np.arange(len(plan.rows)), lengths)
        slot_pages = plan.page_tables[:, row_of_token, positions // BLOCK_TOKENS]
        return StepContext(
            pool=self._pool,
            keys=self._keys,
            values=self._values,
            batch=RaggedBatch(
                [0, *np.cumsum(lengths).tolist()],
                [row.end for row in plan.rows],
                torch.from_numpy(plan.page_tables).to(device),
            ),
            slot_pages=torch.from_numpy(slot_pages).long().to(device),
            slot_offsets=torch.from_numpy(positions % BLOCK_TOKENS).to(device),
            awaited={index: row.awaited for index, row in enumerate(plan.rows) if row.awaited},
            gate=self.mover.gate,
            mover=self.mover,
            writes=None,
            stall_ns=[0] * self.info.num_layers,
        )

    def _forward(self, plan: StepPlan, step: StepContext, result: StepResult) -> None:
        device = self._model.device
        tokens = [t for row in plan.rows for t in row.turn.tokens[row.start : row.end]]
        positions = [p for row in plan.rows for p in range(row.start, row.end)]
        wanted = _wanted_logits(plan.rows, step.batch.query_starts)
        logits = self._model.module(
            torch.tensor([tokens], device=device),
            position_ids=torch.tensor([positions], device=device),
            use_cache=False,
            logits_to_keep=torch.tensor(wanted, device=device),
            step=step,
        ).logits[0]
        place = {token: index for index, token in enumerate(wanted)}
        sampling = [i for i, row in enumerate(plan.rows) if row.sample and i not in step.failed]
        if sampling:
            at = [place[step.batch.query_starts[i + 1] - 1] for i in sampling]
            turns = [plan.rows[i].turn for i in sampling]
            chosen = sample(logits[at], turns, self.info.end_token_ids)
            for index, token in zip(sampling, chosen, strict=True):
                result.sampled[index] = token
                if token is None:
                    result.broken[index] = NOT_FINITE
        for index, row in enumerate(plan.rows):
            if _wants_prompt_logprobs(row) and index not in step.failed:
                first = place[step.batch.query_starts[index]]
                made = _prompt_logprobs(row, logits[first:])
                if any(not math.isfinite(each.logprob or 0.0) for each in made):
                    result.broken[index] = NOT_FINITE
                result.prompt_logprobs[index] = made

    def warm_up(self) -> None:
        """Run once what is slow the first time (compilation of kernels, thread pools)."""
        from kernels.paged_attention import warm_up

        warm_up(self._pool)


def _wants_prompt_logprobs(row: Row) -> bool:
    return row.turn.sampling.prompt_logprobs is not None and row.start < row.turn.num_prompt


def _wanted_logits(rows: list[Row], starts: list[int]) -> list[int]:
    """Packed positions whose logits are needed; never empty."""
    wanted: list[int] = []
    for index, row in enumerate(rows):
        if _wants_prompt_logprobs(row):
            wanted += range(starts[index], starts[index + 1])
        elif row.sample:
            wanted.append(starts[index + 1] - 1)
    return wanted or [starts[-1] - 1]


def _prompt_logprobs(row: Row, logits: torch.Tensor) -> list[TokenLogprobs]:
    """Log-probabilities of the prompt's tokens that this chunk's logits predict.

    Args:
        logits: of the chunk's positions first; position p predicts token p + 1.
    """
    turn = row.turn
    num_top = turn.sampling.prompt_logprobs
    assert num_top is not None, "asked for"
    first = [TokenLogprobs(token=turn.tokens[0], logprob=None)] if row.start == 0 else []
    predicted = turn.tokens[row.start + 1 : min(row.end + 1, turn.num_prompt)]
    if not predicted:
        return first
    return first + token_logprobs(logits[: len(predicted)], predicted, num_top)
