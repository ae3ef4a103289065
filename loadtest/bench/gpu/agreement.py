"""Recorded launches beside eager ones: the same plans, in the same order, on the same model."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import torch

from loadtest.bench.gpu.models import GpuShape, make_executor, record_all
from loadtest.bench.lora.made import MadeAdapter
from loadtest.in_process_engine import InProcessEngine, Moves, some_prompt
from services.worker.core.adapters.image import NO_LINE
from services.worker.core.effects import BuildImage
from services.worker.core.step import Sampled, StepPlan, StepResult
from services.worker.device.base.executor import Launched
from services.worker.device.decoder.loaded_model import LoadedModel
from services.worker.device.gpu.gpu_executor import GpuExecutor
from shared.adapters.layout import layout_image
from shared.blocks import BLOCK_TOKENS
from shared.ids import TurnId
from shared.wire.messages import AdapterRef

# Between log-probabilities. In bf16: a few roundings of logits of up to 8.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}
NUM_TOP = 8
PREFILL_TOKENS = 96  # in a step: longer prompts are cut, beside rows that decode
PROMPTS = (20, 250, 5, 90, 130)
NEW_TOKENS = 10
BUILD_PATIENCE_S = 60.0
KINDS = {"prefill", "chunk", "decode", "mixed"}


@dataclass
class Twins:
    """Two executors that run the same plans; the first one's results count.

    Args:
        built: set whenever the second one reports that an image is built.
        tolerance: between log-probabilities.

    Attributes:
        errors: how their results differ.
        kinds: of the passes that were compared, each with whether it was on adapters.
        recorded_kinds: those of them that were recorded.
        worst: largest difference of a log-probability.
    """

    recorded: GpuExecutor
    eager: GpuExecutor
    built: threading.Event
    tolerance: float
    errors: list[str] = field(default_factory=list)
    kinds: set[tuple[str, bool]] = field(default_factory=set)
    recorded_kinds: set[tuple[str, bool]] = field(default_factory=set)
    num_compared: int = 0
    worst: float = 0.0
    _diverged: set[TurnId] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.info = self.recorded.info
        self.prefill_tokens_max = self.recorded.prefill_tokens_max
        self.mover = self.recorded.mover
        self.grammars = self.recorded.grammars
        self.builder = self
        self.assist_tokens = 0

    def submit(self, build: BuildImage, folder: str) -> None:
        """Make an adapter's image in both pools: where the first one has it, so has the other."""
        self.built.clear()
        self.eager.builder.submit(build, folder)
        assert self.built.wait(BUILD_PATIENCE_S), "an adapter's image is not built"
        self.recorded.builder.submit(build, folder)

    def launch(self, plan: StepPlan) -> Launched:
        return _Pair(self, plan, self.recorded.launch(plan), self.eager.launch(plan))

    @property
    def num_unrecorded(self) -> int:
        return self.recorded.num_unrecorded

    def record_next(self) -> None:
        self.recorded.record_next()

    def check_device(self) -> None:
        self.recorded.check_device()

    def close(self) -> None:
        """Both stay open."""

    def compare(self, plan: StepPlan, one: StepResult, other: StepResult) -> None:
        """Enter how a step's results differ."""
        failed = one.failed | other.failed | one.broken.keys() | other.broken.keys()
        if failed:
            self.errors.append(f"rows {sorted(failed)} of a {_kind(plan)} failed")
        for turn_id, a, b in zip(plan.turn_ids, one.sampled, other.sampled, strict=True):
            if a is not None and b is not None and turn_id not in self._diverged:
                self._compare(_kind(plan), turn_id, a, b)
        kind = _kind(plan), bool((plan.adapters != NO_LINE).any())
        self.kinds.add(kind)
        if not one.unrecorded:
            self.recorded_kinds.add(kind)

    def _compare(self, kind: str, turn_id: TurnId, a: Sampled, b: Sampled) -> None:
        assert a.logprobs is not None and b.logprobs is not None, "they were asked for"
        here, there = dict(a.logprobs.top), dict(b.logprobs.top)
        common = here.keys() & there.keys()
        off = max((abs(here[token] - there[token]) for token in common), default=float("inf"))
        # Only tokens of nearly the same probability may change places.
        if a.token != b.token:
            self._diverged.add(turn_id)
            off = max(off, abs(here[a.token] - here.get(b.token, -float("inf"))))
        self.num_compared += 1
        self.worst = max(self.worst, off)
        if not off <= self.tolerance:
            self.errors.append(
                f"a {kind}: token {a.token} recorded, {b.token} eager; "
                f"log-probabilities differ by {off:.2g} (at most {self.tolerance:g})"
            )


@dataclass(frozen=True)
class _Pair:
    twins: Twins
    plan: StepPlan
    one: Launched
    other: Launched

    def result(self) -> StepResult:
        result = self.one.result()
        self.twins.compare(self.plan, result, self.other.result())
        return result


def check_recorded(
    model: LoadedModel,
    executor: GpuExecutor,
    moves: Moves,
    shape: GpuShape,
    adapters: Sequence[MadeAdapter],
) -> dict[str, Any]:
    """Prefill, decode, both in one step and prompts in pieces, with adapters and without, through
    an executor with recorded launches and one without.

    Args:
        executor: of the model, as it is going to be measured; it reports to `moves`.

    Raises:
        AssertionError: their tokens or log-probabilities differ by more than roundings.
    """
    card = model.lora
    assert card is not None, "the model takes adapters"
    num_blocks = 2 * sum(-(-(each + NEW_TOKENS) // BLOCK_TOKENS) + 1 for each in PROMPTS)
    num_blocks += sum(layout_image(card, each.ref.ranks).num_blocks for each in adapters)
    num_pages = num_blocks * shape.num_layers
    turns_max, built = min(len(PROMPTS), max(shape.batches)), threading.Event()
    eager = make_executor(model, num_pages, turns_max, lambda _: built.set(), is_recorded=False)
    twins = Twins(executor, eager, built, TOLERANCE[shape.dtype])
    moves.engine = None
    with ThreadPoolExecutor(1) as thread:
        engine = InProcessEngine(
            twins, thread, PREFILL_TOKENS, turns_running_max=turns_max, moves=moves,
            adapters_path=str(adapters[0].folder.parent), num_pages=num_pages,
        )  # fmt: skip
        refs = [each.ref for each in adapters]
        for ref in refs:  # resident by the time that they are compared
            engine.submit(some_prompt(0, 2, shape.vocab), 1, ref, logprobs=NUM_TOP)
        engine.run()
        kinds: list[list[AdapterRef | None]] = [[None], [*refs, None]]
        for on, lengths in product(kinds, [PROMPTS[:1], PROMPTS]):
            for number, length in enumerate(lengths):
                prompt = some_prompt(len(on) + len(lengths) + number, length, shape.vocab)
                engine.submit(prompt, NEW_TOKENS, on[number % len(on)], logprobs=NUM_TOP)
            engine.run()
            record_all(executor)  # what was recorded for the first time runs in the next round
    eager.close()
    assert not twins.errors, f"recorded launches are wrong: {'; '.join(twins.errors[:4])}"
    missing = {(kind, on) for kind in KINDS for on in (False, True)} - twins.kinds
    assert not missing, f"launches were not compared in {sorted(missing)}"
    return {
        "recorded_kinds": len(twins.recorded_kinds),  # of 8; fewer where memory is short
        "recorded_compared": twins.num_compared,
        "recorded_logprob_error": float(f"{twins.worst:.2g}"),
    }


def _kind(plan: StepPlan) -> str:
    is_prompt = plan.lengths > 1
    if not is_prompt.any():
        return "decode"
    if not is_prompt.all():
        return "mixed"
    is_cut = np.array([each is None for each in plan.sampling])
    return "chunk" if is_cut.any() else "prefill"
