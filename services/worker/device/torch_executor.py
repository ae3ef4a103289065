"""Runs step plans on a transformers model, on the CPU or on a GPU by the same code."""

import math
import time
from collections.abc import Callable

import torch

from kernels.paged_attention import RaggedBatch
from services.worker.core.step import RowScoring, StepPlan, StepResult
from services.worker.device.executor import Finished, ModelInfo
from services.worker.device.gate import PageGate
from services.worker.device.model import LoadedModel
from services.worker.device.mover import HostCopier, KvMover, Moved, PageCopier
from services.worker.device.sampler import sample, token_logprobs
from services.worker.device.step import StepContext, running
from services.worker.device.tables import BlockTables
from shared.blocks import BLOCK_TOKENS
from shared.messages import TokenLogprobs

NOT_FINITE = "the model's numbers for this turn are not finite"


class TorchExecutor:
    """A loaded model with its page pool and its mover.

    Args:
        num_pages: pool size; ``num_pages * page_bytes`` bytes of device memory.
        on_moved: see `KvMover`.
    """

    def __init__(
        self, model: LoadedModel, model_id: str, num_pages: int, on_moved: Callable[[Moved], None]
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
        self._tables = BlockTables(model.num_layers)
        self._keys, self._values = self._pool[:, 0], self._pool[:, 1]
        self.mover = KvMover(self._make_copier(), PageGate(num_pages), on_moved)

    def launch(self, plan: StepPlan) -> Finished:
        started_ns = time.monotonic_ns()
        result = StepResult(sampled=[None] * plan.num_rows)
        with torch.inference_mode():
            step = self._context(plan)
            with running(step):
                self._forward(plan, step, result)
        self._tables.keep(plan, result.sampled)
        result.failed = step.failed
        result.stall_ns = step.stall_ns
        result.started_at_ns = started_ns
        result.duration_ns = time.monotonic_ns() - started_ns
        return Finished(result)

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
        from services.worker.device.cuda_copier import CudaCopier

        return CudaCopier(self._pool)

    def _context(self, plan: StepPlan) -> StepContext:
        device = self._model.device
        self._tables.enter(plan.entries)
        positions = torch.from_numpy(plan.positions()).long()
        lengths = torch.from_numpy(plan.lengths).long()
        slots = torch.from_numpy(plan.slots).long().repeat_interleave(lengths).to(device)
        tables = torch.from_numpy(self._tables.pages).to(device)
        return StepContext(
            pool=self._pool,
            keys=self._keys,
            values=self._values,
            batch=RaggedBatch(
                plan.query_starts.tolist(),
                plan.context_lens.tolist(),
                plan.slots.tolist(),
                tables,
            ),
            positions=positions[None].to(device),
            slot_pages=tables[:, slots, (positions // BLOCK_TOKENS).to(device)].long(),
            slot_offsets=(positions % BLOCK_TOKENS).to(device),
            awaited=plan.awaited,
            gate=self.mover.gate,
            stall_ns=[0] * self.info.num_layers,
        )

    def _forward(self, plan: StepPlan, step: StepContext, result: StepResult) -> None:
        device = self._model.device
        starts = step.batch.query_starts
        wanted = _wanted_logits(plan, starts)
        tokens = self._tables.tokens(plan)
        logits = self._model.module(
            torch.from_numpy(tokens).long()[None].to(device),
            position_ids=step.positions,
            use_cache=False,
            logits_to_keep=torch.tensor(wanted, device=device),
        ).logits[0]
        place = {token: index for index, token in enumerate(wanted)}
        carried = frozenset(plan.carried.tolist())
        rows = [
            (index, sampling.after(tokens[starts[index + 1] - 1]) if index in carried else sampling)
            for index, sampling in enumerate(plan.sampling)
            if sampling is not None and index not in step.failed
        ]
        if rows:
            at = [place[starts[index + 1] - 1] for index, _ in rows]
            sampling = [sampling for _, sampling in rows]
            chosen = sample(logits[at], sampling, self.info.end_token_ids)
            for (index, _), token in zip(rows, chosen, strict=True):
                result.sampled[index] = token
                if token is None:
                    result.broken[index] = NOT_FINITE
        for index, scoring in plan.scoring.items():
            if index not in step.failed:
                first = starts[index]
                made = _prompt_logprobs(scoring, int(plan.tokens[first]), logits[place[first] :])
                if any(not math.isfinite(each.logprob or 0.0) for each in made):
                    result.broken[index] = NOT_FINITE
                result.prompt_logprobs[index] = made

    def warm_up(self) -> None:
        """Run once what is slow the first time (compilation of kernels, thread pools)."""
        from kernels.paged_attention import warm_up

        warm_up(self._pool)


def _wanted_logits(plan: StepPlan, starts: list[int]) -> list[int]:
    """Packed positions whose logits are needed; never empty."""
    wanted: list[int] = []
    for index, sampling in enumerate(plan.sampling):
        if index in plan.scoring:
            wanted += range(starts[index], starts[index + 1])
        elif sampling is not None:
            wanted.append(starts[index + 1] - 1)
    return wanted or [starts[-1] - 1]


def _prompt_logprobs(
    scoring: RowScoring, first_token: int, logits: torch.Tensor
) -> list[TokenLogprobs]:
    """Log-probabilities of the prompt's tokens that this chunk's logits predict.

    Args:
        first_token: of the chunk.
        logits: of the chunk's positions first; position p predicts token p + 1.
    """
    first = [TokenLogprobs(token=first_token, logprob=None)] if scoring.is_first else []
    targets = scoring.targets
    if not targets:
        return first
    return first + token_logprobs(logits[: len(targets)], targets, scoring.num_top)
