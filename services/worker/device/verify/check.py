"""Holds what this engine computes for a family against transformers."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import PreTrainedConfig

from kernels.plain import plain_kernels
from services.worker.core.step import StepResult
from services.worker.device.cpu.torch_executor import TorchExecutor
from services.worker.device.decoder.attention import UnsupportedModelError
from services.worker.device.decoder.loaded_model import LoadedModel, prepare_model
from services.worker.device.forward import Decoder, use_own_forward
from services.worker.device.layers import Mode, speed_up
from services.worker.device.verify import scenario, twins
from services.worker.device.verify.cut import VOCAB, Candidate, special_tokens
from services.worker.device.verify.reasons import explain, named
from services.worker.device.verify.record import Checked
from services.worker.device.verify.scenario import Part, Way
from services.worker.device.verify.twins import NotBuilt
from shared.errors import SymphonyError

log = logging.getLogger(__name__)

AGREES = 2e-4  # of a log-probability: float32, summed in another order
SEEDS = (1, 2, 3)
LIMIT_S = 120.0


class Untried(UnsupportedModelError):
    """It could not be seen whether it is computed right."""


class Differs(UnsupportedModelError):
    """A log-probability is another one than transformers'."""


def check(
    config: PreTrainedConfig, candidates: list[Candidate], layers: Mode, *, is_compiled: bool
) -> Checked:
    """See that small models of a config are computed as transformers computes them.

    Args:
        config: of the model itself, for words about it.
        candidates: small ones of its family; the first that transformers can run is held to it.
        layers: as in `load_model`.
        is_compiled: with compiled kernels, or with torch's own operators in their place.

    Raises:
        UnsupportedModelError: they are not, or no small model runs; names the family, and why.
    """
    end_at = time.monotonic() + LIMIT_S
    with _one_thread(), nullcontext() if is_compiled else plain_kernels():
        try:
            return _check_candidates(candidates, layers, end_at)
        except UnsupportedModelError as error:
            reason = explain(config)
            if isinstance(error, Untried) and reason is None:
                raise Untried(f"{named(config)}: {error.message}") from error
            seen = error.message if reason is None else f"{reason} ({error.message})"
            raise UnsupportedModelError(f"{named(config)}: {seen}") from error


@contextmanager
def _one_thread() -> Iterator[None]:
    """What is tiny is not shared out: threads would wait for each other longer than it takes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _check_candidates(candidates: list[Candidate], layers: Mode, end_at: float) -> Checked:
    whys: list[str] = []
    for candidate in candidates:
        try:
            return _check_seeds(candidate, layers, end_at)
        except NotBuilt as error:
            whys.append(str(error))
    raise Untried(
        f"it could not be verified: no small model of it runs in transformers ({whys[0]})"
        if whys
        else "it could not be verified: its config cannot be cut"
    )


def _check_seeds(candidate: Candidate, layers: Mode, end_at: float) -> Checked:
    """Differences must show with other weights too: where experts are chosen, a tie may be broken
    by rounding. What was wrong once is right only if it is right with all others."""
    first, *others = SEEDS
    try:
        return _check(candidate, layers, first, end_at)
    except Differs as error:
        log.debug("differs", extra={"error": error.message, "seed": first})
    return [_check(candidate, layers, seed, end_at) for seed in others][-1]


def _check(candidate: Candidate, layers: Mode, seed: int, end_at: float) -> Checked:
    like = twins.reference(candidate.config, seed)
    twins.log_probabilities(like, [0, 0, 0])  # runs it at all?
    try:
        loaded = _load(candidate.config, like, layers)
        trial = _trial(candidate.config, like, seed, loaded)
        _run(trial, loaded, end_at)
        is_own = layers == "fast" and _is_right(trial, loaded, end_at)
    except NotBuilt:
        raise
    except (SymphonyError, AssertionError):
        raise
    except Exception as error:  # of a stranger's model, whose code expects what is not there
        text = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise UnsupportedModelError(f"it does not run with paged attention: {text}") from error
    return Checked(
        family=str(candidate.config.model_type),
        cut=candidate.level,
        ways=[way.name for way in trial.ways],
        num_parameters=sum(parameter.numel() for parameter in like.parameters()),
        worst=trial.worst,
        took_s=0.0,
        has_own_forward=is_own,
    )


def _trial(config: PreTrainedConfig, like: Any, seed: int, loaded: LoadedModel) -> "_Trial":
    """Random prompts, and what transformers says of them."""
    lengths = scenario.lengths(loaded.max_model_len)
    prompts = _prompts(config, lengths, min(loaded.vocab_size, VOCAB), seed)
    wanted = {
        name: twins.log_probabilities(like, prompt).tolist() for name, prompt in prompts.items()
    }
    return _Trial(prompts, wanted, scenario.ways(lengths))


def _prompts(
    config: PreTrainedConfig, lengths: dict[str, int], num_tokens: int, seed: int
) -> dict[str, list[int]]:
    """One token more than is computed of each. No padding, nor what stands for images or sound; the
    longest has what stands between messages."""
    special = special_tokens(config)
    between = {each for name in ("bos_token_id", "eos_token_id") for each in special.get(name, [])}
    no_text = {each for found in special.values() for each in found} - between
    no_text |= set(special.get("pad_token_id", []))
    generator = torch.Generator().manual_seed(seed)
    plain = torch.tensor([token for token in range(num_tokens) if token not in no_text])
    prompts: dict[str, list[int]] = {
        name: plain[torch.randint(len(plain), (length + 1,), generator=generator)].tolist()
        for name, length in lengths.items()
    }
    for number, token in enumerate(sorted(between - no_text), 1):
        if 0 <= token < num_tokens:
            prompts["long"][7 * number % lengths["long"]] = token
    prompts["resumed"][: scenario.SHARED] = prompts["long"][: scenario.SHARED]
    return prompts


def _load(config: PreTrainedConfig, like: Any, layers: Mode) -> LoadedModel:
    """What a load makes of such a model."""
    model = twins.ours(config, like)
    loaded = prepare_model(model, "")
    if layers != "plain" and speed_up(model, layers == "invariant") is None:
        return prepare_model(twins.ours(config, like), "")
    return loaded


def _is_right(trial: "_Trial", loaded: LoadedModel, end_at: float) -> bool:
    """Whether there is a forward of our own for it, which computes the prompts right in every way.
    If not, transformers' own is there."""
    use_own_forward(loaded)
    if not isinstance(loaded.forward, Decoder):
        return False
    try:
        _run(replace(trial, alone={}), loaded, end_at)
    except Untried:
        raise
    except Exception as error:
        log.info("transformers' own forward", extra={"why": str(error)})
        return False
    return True


def _run(trial: "_Trial", loaded: LoadedModel, end_at: float) -> None:
    """Compute the prompts in every way."""
    executor = TorchExecutor(loaded, "verified", scenario.num_pages(loaded.num_layers), _ignore)
    try:
        for way in trial.ways:
            plans = scenario.plans(way, trial.prompts, loaded.num_layers, loaded.short_rope_max)
            for step, plan in zip(way.steps, plans, strict=True):
                if time.monotonic() > end_at:
                    raise Untried(
                        f"it could not be verified within {LIMIT_S:.0f} s: "
                        "try again when this machine has less to do"
                    )
                trial.hold(way.name, step, executor.launch(plan).result())
    finally:
        executor.close()


@dataclass(slots=True)
class _Trial:
    """Prompts, and what came of them.

    Attributes:
        wanted: log-probability of each token after a prompt's first.
        alone: by prompt and position, as computed in a step of no other request.
    """

    prompts: dict[str, list[int]]
    wanted: dict[str, list[float]]
    ways: list[Way]
    alone: dict[tuple[str, int], float] = field(default_factory=dict)
    worst: float = 0.0

    def hold(self, way: str, step: list[Part], result: StepResult) -> None:
        """Hold a step's result against transformers and, if it had several rows, against the same
        rows alone.

        Raises:
            Differs: it is another one.
        """
        scores = [
            (part.prompt, at, float(scored.logprob or 0.0))
            for row, part in enumerate(step)
            for at, scored in enumerate(result.prompt_logprobs.get(row, []), part.start)
        ]
        if len(step) == 1:
            self.alone |= {(prompt, at): score for prompt, at, score in scores}
        for prompt, at, score in scores:
            alone = self.alone.get((prompt, at), score)
            self._compare("rows of other requests change its answer", at, score, alone)
        for prompt, at, score in scores:
            want = self.wanted[prompt][at]
            self._compare(f"{way} differs from transformers", at, score, want)

    def _compare(self, what: str, at: int, got: float, want: float) -> None:
        away = abs(got - want)
        if not away <= AGREES:  # also where it is no number
            raise Differs(f"{what} (at position {at} by {away:.2g})")
        self.worst = max(self.worst, away)


def _ignore(moved: object) -> None:
    """Nothing is moved."""
