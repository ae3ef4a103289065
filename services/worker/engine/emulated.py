"""An executor without a model: its forward pass takes as long as a latency profile says.

Everything around it is real: the same core, pages, mover, arena and messages. A page holds the
tokens of its block, so that history brought up from below can be checked against the prompt.
"""

import time
from collections.abc import Callable

import numpy as np

from services.worker.core.effects import Row, Sampled, StepPlan, StepResult
from services.worker.demo_model import VOCAB
from services.worker.engine.executor import ModelInfo
from services.worker.engine.gate import PageGate
from services.worker.engine.mover import HostCopier, KvMover
from shared.blocks import BLOCK_TOKENS
from shared.messages import TokenLogprobs
from shared.profiles import LatencyProfile

PANGRAM = b"The quick brown fox jumps over the lazy dog. "
END_OF_TURN = 258  # of the demo model's byte-level tokenizer, which speaks for every profile
REPLY_TOKENS = 3 * len(PANGRAM)
PAGE_BYTES = BLOCK_TOKENS * 4
STALL_TIMEOUT_NS = 1_000_000_000


class EmulatedExecutor:
    """Takes the profile's time; says the same sentence whatever it is asked.

    Args:
        source: folder with the tokenizer and chat template to speak with.
        on_loaded: see `KvMover`.
    """

    def __init__(
        self,
        profile: LatencyProfile,
        source: str,
        on_loaded: Callable[[list[int], list[int], int, int], None],
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
        copier = HostCopier(self._pool.view(np.uint8))
        self.mover = KvMover(copier, PageGate(num_pages), on_loaded)

    def execute(self, plan: StepPlan) -> StepResult:
        started_ns = time.monotonic_ns()
        result = StepResult(sampled=[None] * len(plan.rows))
        result.stall_ns = [0] * self.info.num_layers
        for index, row in enumerate(plan.rows):
            if row.awaits and not self._has_history(plan, index, row, result):
                result.failed.add(index)
                continue
            self._compute(plan, index, row)
            if row.sample:
                result.sampled[index] = _say(row)
        self._take_time(plan, started_ns)
        result.checksums = self._write(plan)
        result.duration_ns = time.monotonic_ns() - started_ns
        return result

    def check_device(self) -> None:
        self.mover.check()

    def close(self) -> None:
        self.mover.close()

    def _has_history(self, plan: StepPlan, index: int, row: Row, result: StepResult) -> bool:
        expected = np.array(row.turn.tokens[: row.awaits * BLOCK_TOKENS], np.int32)
        for layer in range(self.info.num_layers):
            pages = plan.page_tables[layer, index, : row.awaits]
            before_ns = time.monotonic_ns()
            has_come = self.mover.gate.wait(row.awaited[layer], STALL_TIMEOUT_NS)
            result.stall_ns[layer] += time.monotonic_ns() - before_ns
            if not has_come:
                return False
            assert np.array_equal(self._pool[pages].ravel(), expected), "KV of other tokens"
        return True

    def _compute(self, plan: StepPlan, index: int, row: Row) -> None:
        first, last = row.start // BLOCK_TOKENS, (row.end - 1) // BLOCK_TOKENS
        for block in range(first, last + 1):
            begin, end = (
                max(row.start, block * BLOCK_TOKENS),
                min(row.end, (block + 1) * BLOCK_TOKENS),
            )
            pages = plan.page_tables[:, index, block]
            offset = begin - block * BLOCK_TOKENS
            self._pool[pages, offset : offset + end - begin] = row.turn.tokens[begin:end]

    def _take_time(self, plan: StepPlan, started_ns: int) -> None:
        profile = self._profile
        prefill, decodes = plan.num_prefill_tokens, plan.num_decodes
        context = sum(row.end for row in plan.rows)
        history = sum(row.awaits for row in plan.rows) * BLOCK_TOKENS
        load_ms = history * profile.kv_bytes_per_token / (profile.kv_read_gb_per_s * 1e6)
        step_ms = profile.step_ms(prefill, decodes, context) if plan.rows else 0.0
        # Layers stream in behind the pass: it takes as long as the slower of the two.
        left_s = max(step_ms, load_ms) / 1e3 - (time.monotonic_ns() - started_ns) / 1e9
        if left_s > 0:
            time.sleep(left_s)

    def _write(self, plan: StepPlan) -> list[list[int]]:
        writes = self.mover.begin_writes(plan, self.info.num_layers)
        if writes is None:
            return []
        for index in range(len(plan.writes)):
            for layer in range(self.info.num_layers):
                self.mover.store(writes, index, layer)
        return writes.wait()


def _say(row: Row) -> Sampled:
    turn = row.turn
    said = turn.num_generated
    is_over = said >= REPLY_TOKENS and not turn.sampling.ignore_eos
    token = END_OF_TURN if is_over else PANGRAM[said % len(PANGRAM)]
    if turn.sampling.logprobs is None:
        return Sampled(token)
    return Sampled(token, TokenLogprobs(token=token, logprob=0.0, top=[(token, 0.0)]))
