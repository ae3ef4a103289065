"""An executor without a model: its forward pass takes as long as a latency profile says.

Everything around it is real: the same core, pages, mover, arena and messages. A page holds the
tokens of its block.
"""

import time
from collections.abc import Callable

import numpy as np

from services.worker.core.step import RowSampling, Sampled, StepPlan, StepResult
from services.worker.demo_model import VOCAB
from services.worker.device.copies import HostCopier
from services.worker.device.executor import Finished, ModelInfo
from services.worker.device.failures import Failures
from services.worker.device.gate import STALL_TIMEOUT_NS, PageGate
from services.worker.device.mover import KvMover, Moved
from services.worker.device.tables import BlockTables
from shared.blocks import BLOCK_TOKENS
from shared.messages import TokenLogprobs
from shared.profiles import LatencyProfile

PANGRAM = b"The quick brown fox jumps over the lazy dog. "
END_OF_TURN = 258  # of the demo model's byte-level tokenizer, which speaks for every profile
REPLY_TOKENS = 3 * len(PANGRAM)
PAGE_BYTES = BLOCK_TOKENS * 4


class EmulatedExecutor:
    """Takes the profile's time; says the same sentence whatever it is asked.

    Args:
        source: folder with the tokenizer and chat template to speak with.
        on_moved: see `KvMover`.
    """

    def __init__(
        self,
        profile: LatencyProfile,
        source: str,
        on_moved: Callable[[Moved], None],
    ) -> None:
        self._profile = profile
        self.prefill_tokens_max = 2048
        num_pages = profile.num_kv_tokens // BLOCK_TOKENS * profile.num_layers
        self.info = ModelInfo(
            model_id=profile.name,
            source=source,
            fingerprint=f"emulated-{profile.name}-1",
            max_model_len=profile.max_model_len,
            num_layers=profile.num_layers,
            page_bytes=PAGE_BYTES,
            num_pages=num_pages,
            vocab_size=VOCAB,
            end_token_ids=frozenset([END_OF_TURN]),
            block_tokens=BLOCK_TOKENS,
            is_emulated=True,
        )
        self._pool = np.zeros((num_pages, BLOCK_TOKENS), np.int32)
        self._tables = BlockTables(profile.num_layers)
        self._failures = Failures()
        copier = HostCopier(self._pool.view(np.uint8))
        self.mover = KvMover(copier, PageGate(num_pages), on_moved)

    def launch(self, plan: StepPlan) -> Finished:
        started_ns = time.monotonic_ns()
        self._tables.enter(plan.entries)
        result = StepResult([None] * plan.num_rows, stall_ns=[0] * self.info.num_layers)
        result.failed = self._failures.void(plan)
        for index, awaited in plan.awaited.items():
            if index not in result.failed and not self._has_history(awaited, result):
                result.failed.add(index)
        self._compute(plan)
        for index, sampling in enumerate(plan.sampling):
            if sampling is not None and index not in result.failed:
                result.sampled[index] = _say(sampling)
        self._tables.keep(plan, result.sampled)
        self._failures.keep(plan, result.failed)
        self._take_time(plan, started_ns)
        result.started_at_ns = started_ns
        result.duration_ns = time.monotonic_ns() - started_ns
        return Finished(result)

    def check_device(self) -> None:
        self.mover.check()

    def close(self) -> None:
        self.mover.close()

    def _has_history(self, awaited: list[list[int]], result: StepResult) -> bool:
        for layer, pages in enumerate(awaited):
            before_ns = time.monotonic_ns()
            has_come = self.mover.gate.wait(pages, STALL_TIMEOUT_NS)
            result.stall_ns[layer] += time.monotonic_ns() - before_ns
            if not has_come:
                return False
        return True

    def _compute(self, plan: StepPlan) -> None:
        positions = plan.positions()
        slots = np.repeat(plan.slots, plan.lengths)
        pages = self._tables.pages[:, slots, positions // BLOCK_TOKENS]
        self._pool[pages, positions % BLOCK_TOKENS] = self._tables.tokens(plan)

    def _take_time(self, plan: StepPlan, started_ns: int) -> None:
        profile = self._profile
        context = int(plan.context_lens.sum())
        num_awaited = sum(len(pages) for awaited in plan.awaited.values() for pages in awaited)
        history = num_awaited / self.info.num_layers * BLOCK_TOKENS
        load_ms = history * profile.kv_bytes_per_token / (profile.kv_read_gb_per_s * 1e6)
        step_ms = profile.step_ms(plan.num_prefill_tokens, plan.num_decodes, context)
        # Layers stream in behind the pass: it takes as long as the slower of the two.
        left_s = max(step_ms, load_ms) / 1e3 - (time.monotonic_ns() - started_ns) / 1e9
        if left_s > 0:
            time.sleep(left_s)


def _say(row: RowSampling) -> Sampled:
    said = row.num_generated
    is_over = said >= REPLY_TOKENS and not row.params.ignore_eos
    token = END_OF_TURN if is_over else PANGRAM[said % len(PANGRAM)]
    if row.params.logprobs is None:
        return Sampled(token)
    return Sampled(token, TokenLogprobs(token=token, logprob=0.0, top=[(token, 0.0)]))
