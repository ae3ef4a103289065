"""Runs step plans on a transformers model on the CPU."""

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from kernels.paged_attention import RaggedBatch
from services.worker.core.step import Ints, StepPlan, StepResult
from services.worker.device.copies import HostCopier
from services.worker.device.executor import Finished
from services.worker.device.failures import Failures
from services.worker.device.gate import STALL_TIMEOUT_NS, PageGate
from services.worker.device.model import LoadedModel
from services.worker.device.mover import KvMover, Moved
from services.worker.device.sampler import sample, token_logprobs
from services.worker.device.scoring import NOT_FINITE, enter_scores, wanted_logits
from services.worker.device.step import StepContext, running
from services.worker.device.tables import BlockTables
from shared.blocks import BLOCK_TOKENS

PREFILL_TOKENS = 512


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
        self.prefill_tokens_max = PREFILL_TOKENS
        self.info = model.info(model_id, num_pages)
        self._pool = model.make_pool(num_pages)
        self._tables = BlockTables(model.num_layers)
        self._failures = Failures()
        raw = self._pool.view(torch.uint8).numpy().reshape(num_pages, -1)
        self.mover = KvMover(HostCopier(raw), PageGate(num_pages), on_moved)

    def launch(self, plan: StepPlan) -> Finished:
        started_ns = time.monotonic_ns()
        result = StepResult(sampled=[None] * plan.num_rows)
        with torch.inference_mode():
            positions = plan.positions()
            step = self._context(plan, positions)
            with running(step):
                self._forward(plan, positions, step, result)
        self._tables.keep(plan, result.sampled)
        self._failures.keep(plan, step.failed)
        result.failed = step.failed
        result.stall_ns = step.stall_ns
        result.started_at_ns = started_ns
        result.duration_ns = time.monotonic_ns() - started_ns
        return Finished(result)

    def check_device(self) -> None:
        self.mover.check()
        one = torch.ones(1)
        assert (one + one).item() == 2.0, "the device miscounts"

    def close(self) -> None:
        self.mover.close()

    def _context(self, plan: StepPlan, positions: Ints) -> StepContext:
        self._tables.enter(plan.entries)
        slots = np.repeat(plan.slots, plan.lengths)
        pages = self._tables.pages
        return StepContext(
            pool=self._pool,
            batch=RaggedBatch(
                plan.query_starts.tolist(),
                plan.context_lens.tolist(),
                plan.slots.tolist(),
                torch.from_numpy(pages),
            ),
            slot_pages=torch.from_numpy(pages[:, slots, positions // BLOCK_TOKENS]),
            slot_offsets=torch.from_numpy(positions % BLOCK_TOKENS),
            awaited=plan.awaited,
            wait=partial(self.mover.gate.wait, timeout_ns=STALL_TIMEOUT_NS),
            stall_ns=[0] * self.info.num_layers,
            failed=self._failures.void(plan),
        )

    def _forward(
        self, plan: StepPlan, positions: Ints, step: StepContext, result: StepResult
    ) -> None:
        starts = step.batch.query_starts
        wanted = wanted_logits(plan)
        tokens = self._tables.tokens(plan)
        logits = self._model.module(
            torch.from_numpy(tokens).long()[None],
            position_ids=torch.from_numpy(positions).long()[None],
            use_cache=False,
            logits_to_keep=torch.tensor(wanted),
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
                targets = scoring.targets
                of = logits[place[starts[index]] :][: len(targets)]
                scores = token_logprobs(of, targets, scoring.num_top) if targets else []
                enter_scores(result, plan, index, scores)

    def warm_up(self) -> None:
        """Run once what is slow the first time (compilation of kernels, thread pools)."""
        from kernels.paged_attention import warm_up

        warm_up(self._pool)
