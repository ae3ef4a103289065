"""Runs step plans on a transformers model on the CPU."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import numpy as np
import torch

from kernels.kv_int8.select import warm_up as warm_up_int8
from kernels.paged_attention import RaggedBatch
from kernels.sgmv import warm_up as warm_up_adapters
from services.worker.core.step import Ints, StepPlan, StepResult
from services.worker.device.assist.assistance import assist
from services.worker.device.assist.host_crew import HostCrew
from services.worker.device.base.executor import Finished, RecordsNothing
from services.worker.device.base.step import StepContext
from services.worker.device.base.tables import BlockTables, Failures
from services.worker.device.copying.copies import HostCopier, PageCopier
from services.worker.device.copying.gate import PageGate
from services.worker.device.copying.image_builder import ImageBuilder, ReadImage
from services.worker.device.copying.int8_pages import Int8HostCopier
from services.worker.device.copying.mover import KvMover, Moved
from services.worker.device.copying.slow_link import SlowLink
from services.worker.device.decoder.loaded_model import LoadedModel
from services.worker.device.grammar import Grammars, Vocabulary, asked_of
from services.worker.device.layers.invariant import ROWS
from services.worker.device.lora.tables import LoraLines
from services.worker.device.parallel.copier import RanksCopier, Slices
from services.worker.device.parallel.images import read_split_image
from services.worker.device.parallel.ranks import Ranks
from services.worker.device.parallel.split import of_all_ranks
from services.worker.device.sampling.sampler import (
    NOT_FINITE,
    enter_scores,
    sample,
    token_logprobs,
    wanted_logits,
)
from shared.arena import Bytes
from shared.blocks import BLOCK_TOKENS

PREFILL_TOKENS = 512


class TorchExecutor(RecordsNothing):
    """A loaded model with its page pool and its mover.

    Args:
        num_pages: pool size; ``num_pages * page_bytes`` bytes of device memory.
        on_moved: see `KvMover`.
        link_bytes_per_s: of loads into the pool; 0: as fast as memory is.
        crew: helpers for adapters that are not in the pool; closed with this.
        ranks: compute the other parts of a model of which this one is the first; closed with this.
    """

    def __init__(
        self,
        model: LoadedModel,
        model_id: str,
        num_pages: int,
        on_moved: Callable[[Moved], None],
        link_bytes_per_s: float = 0.0,
        crew: HostCrew | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self._crew = crew
        self._ranks = ranks
        self._model = model
        self.prefill_tokens_max = PREFILL_TOKENS
        num_ranks = 1 if ranks is None else ranks.num_ranks
        self.info = of_all_ranks(model.info(model_id, num_pages), num_ranks)
        self._pool = model.make_pool(num_pages)
        self._tables = BlockTables(model.num_layers)
        self._failures = Failures()
        self._lora = None
        if model.lora is not None:
            self._lora = LoraLines(model.lora, rows_max=ROWS if model.is_invariant else 0)
        copier: PageCopier = _host_copier(model, self._pool)
        read_image: ReadImage = model.read_image
        if ranks is not None:
            copier = RanksCopier(Slices(self.pool_bytes(), 0), ranks)
            read_image = partial(read_split_image, self.info, num_ranks)
        if link_bytes_per_s:
            copier = SlowLink(copier, link_bytes_per_s)
        gate = PageGate(num_pages)
        token_rows = model.token_rows * num_ranks
        self.mover = KvMover(copier, gate, on_moved, reader=crew, token_rows=token_rows)
        self.builder = ImageBuilder(read_image, copier, gate, on_moved)
        info = self.info
        self.grammars = Grammars(Vocabulary(info.source, info.vocab_size, info.end_token_ids))

    def launch(self, plan: StepPlan) -> Finished:
        started_ns = time.monotonic_ns()
        result = StepResult(sampled=[None] * plan.num_rows)
        with torch.inference_mode():
            positions = plan.positions()
            wanted = wanted_logits(plan)
            step = self._context(plan, positions, wanted)
            with self._helpers(plan, step, result):
                self._forward(plan, wanted, step, result)
        self._tables.keep(plan, result.sampled)
        self._failures.keep(plan, step.failed)
        result.failed = step.failed
        result.stall_ns, result.stall_at_ns = step.stall_ns, step.stall_at_ns
        result.started_at_ns = started_ns
        result.duration_ns = time.monotonic_ns() - started_ns
        return Finished(result)

    def compute(self, plan: StepPlan, wanted: list[int]) -> None:
        """The pass of a plan that another rank has launched, see `Ranks.step`."""
        with torch.inference_mode():
            step = self._context(plan, plan.positions(), wanted)
            self._pass(step, plan.tokens, wanted)

    def pool_bytes(self) -> Bytes:
        """The pool, uint8 ``[num_pages, page_bytes]``: a view."""
        found: Bytes = self._pool.view(torch.uint8).numpy().reshape(len(self._pool), -1)
        return found

    @property
    def assist_tokens(self) -> int:
        # All that an order can have: what helpers take for it is measured, and decides.
        return self._crew.tokens_max if self._crew is not None and self._crew.num_ready else 0

    def check_device(self) -> None:
        self.mover.check()
        if self._ranks is not None:
            self._ranks.check()
        if self._crew is not None:
            self._crew.check()
        one = torch.ones(1)
        assert (one + one).item() == 2.0, "the device miscounts"

    def close(self) -> None:
        self.grammars.close()
        self.builder.close()
        self.mover.close()
        if self._crew is not None:
            self._crew.close()
        if self._ranks is not None:
            self._ranks.close()

    @contextmanager
    def _helpers(self, plan: StepPlan, step: StepContext, result: StepResult) -> Iterator[None]:
        """Have helpers in a step that wants some, if there are any."""
        if not plan.assists or self._crew is None or self._lora is None:
            yield
            return
        try:
            assistance = step.assistance = assist(self._crew, plan, self._lora.images)
            yield
            result.assist_ns = 0 if assistance is None else assistance.took_ns
        finally:
            self._crew.end()

    def _context(self, plan: StepPlan, positions: Ints, wanted: list[int]) -> StepContext:
        self._tables.enter(plan.entries)
        if self._lora is not None:
            self._lora.enter(plan.images)
        slots = np.repeat(plan.slots, plan.lengths)
        pages = self._tables.pages
        return StepContext(
            pool=self._pool,
            batch=RaggedBatch(
                plan.query_starts.tolist(),
                plan.context_lens.tolist(),
                plan.slots.tolist(),
                torch.from_numpy(pages),
                is_invariant=self._model.is_invariant,
            ),
            slot_pages=torch.from_numpy(pages[:, slots, positions // BLOCK_TOKENS]),
            slot_offsets=torch.from_numpy(positions % BLOCK_TOKENS),
            positions=torch.from_numpy(positions).long(),
            is_long=torch.from_numpy(plan.are_long()) if len(plan.long) else None,
            awaited=plan.awaited,
            due_in_ns=partial(plan.due_in_ns, num_layers=self.info.num_layers),
            streams=plan.streams,
            lines=plan.adapters.tolist(),
            has=self.mover.gate.has,
            wait=self.mover.gate.wait,
            stall_ns=[0] * self.info.num_layers,
            failed=self._failures.void(plan),
            lora=None if self._lora is None else self._lora.step(plan, wanted),
        )

    def _forward(
        self, plan: StepPlan, wanted: list[int], step: StepContext, result: StepResult
    ) -> None:
        starts = step.batch.query_starts
        tokens = self._tables.tokens(plan)
        rows = [row for row in plan.sampled_rows(tokens) if row[0] not in step.failed]
        masks = self.grammars.begin(asked_of(plan, rows))  # beside the pass
        ranks = self._ranks
        with nullcontext() if ranks is None else ranks.step(plan, tokens, wanted, step):
            logits = self._pass(step, tokens, wanted)
        place = {token: index for index, token in enumerate(wanted)}
        masks.wait()
        step.failed |= masks.late
        result.refused = masks.failed
        rows = [row for row in rows if row[0] not in step.failed and row[0] not in masks.failed]
        if rows:
            at = [place[starts[index + 1] - 1] for index, _ in rows]
            sampling = [sampling for _, sampling in rows]
            own = {
                number: masks.ready[index]
                for number, (index, _) in enumerate(rows)
                if index in masks.ready
            }
            chosen = sample(logits[at], sampling, self.info.end_token_ids, own)
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

    def _pass(self, step: StepContext, tokens: Ints, wanted: list[int]) -> torch.Tensor:
        """Logits of the wanted tokens."""
        picked = None if len(wanted) == len(tokens) else torch.tensor(wanted, dtype=torch.long)
        return self._model.forward(step, torch.from_numpy(tokens).long(), picked)

    def warm_up(self) -> None:
        """Run once what is slow the first time (compilation of kernels, thread pools)."""
        from kernels.paged_attention import warm_up

        warm_up(self._pool)
        if self._model.stored_form is not None:
            warm_up_int8(self._pool[0])
        if self._lora is not None:
            warm_up_adapters(self._pool.dtype)


def _host_copier(model: LoadedModel, pool: torch.Tensor) -> HostCopier:
    if (form := model.stored_form) is not None:
        return Int8HostCopier(pool, form)
    return HostCopier(pool.view(torch.uint8).numpy().reshape(len(pool), -1))
