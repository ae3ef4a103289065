"""Holds what this engine computes for a family against transformers."""

import logging
import time
from contextlib import nullcontext

import torch
from transformers import PreTrainedConfig

from kernels.plain import plain_kernels
from services.worker.device.attention import UnsupportedModelError
from services.worker.device.layers import Mode, speed_up
from services.worker.device.model import max_model_len, prepare_model
from services.worker.device.torch_executor import TorchExecutor
from services.worker.device.verify import scenario, twins
from services.worker.device.verify.cut import VOCAB, Candidate, special_tokens
from services.worker.device.verify.reasons import explain, named
from services.worker.device.verify.record import Checked
from services.worker.device.verify.twins import NotBuilt
from shared.errors import SymphonyError

log = logging.getLogger(__name__)

AGREES = 2e-4  # of a log-probability: float32, summed in another order
SEEDS = (1, 2)
LIMIT_S = 120.0

Scores = dict[str, torch.Tensor]


class Unverified(UnsupportedModelError):
    """There was no time to see."""


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
    with nullcontext() if is_compiled else plain_kernels():
        try:
            return _check_candidates(candidates, layers, end_at)
        except Unverified as error:
            raise UnsupportedModelError(f"{named(config)}: {error.message}") from error
        except UnsupportedModelError as error:
            reason = explain(config)
            seen = error.message if reason is None else f"{reason} ({error.message})"
            raise UnsupportedModelError(f"{named(config)}: {seen}") from error


def _check_candidates(candidates: list[Candidate], layers: Mode, end_at: float) -> Checked:
    whys: list[str] = []
    for candidate in candidates:
        try:
            return _check_seeds(candidate, layers, end_at)
        except NotBuilt as error:
            whys.append(str(error))
    raise UnsupportedModelError(
        f"it could not be verified: no small model of it runs in transformers ({whys[0]})"
        if whys
        else "it could not be verified: its config cannot be cut"
    )


def _check_seeds(candidate: Candidate, layers: Mode, end_at: float) -> Checked:
    """A difference must show with other weights too: where experts are chosen, a tie may be broken
    by rounding."""
    for seed in SEEDS[:-1]:
        try:
            return _check(candidate, layers, seed, end_at)
        except Differs as error:
            log.debug("differs", extra={"error": error.message, "seed": seed})
    return _check(candidate, layers, SEEDS[-1], end_at)


def _check(candidate: Candidate, layers: Mode, seed: int, end_at: float) -> Checked:
    config = candidate.config
    like = twins.reference(config, seed)
    lengths = scenario.lengths(max_model_len(config.get_text_config()))
    prompts = _prompts(config, lengths, seed)
    wanted = {name: twins.log_probabilities(like, prompt) for name, prompt in prompts.items()}
    try:
        worst = _compare_all(config, like, layers, prompts, wanted, lengths, end_at)
    except (SymphonyError, AssertionError):
        raise
    except Exception as error:  # of a stranger's model, whose code expects what is not there
        text = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise UnsupportedModelError(f"it does not run with paged attention: {text}") from error
    return Checked(
        family=str(config.model_type),
        cut=candidate.level,
        ways=[way.name for way in scenario.ways(lengths)],
        num_parameters=sum(parameter.numel() for parameter in like.parameters()),
        worst=worst,
        took_s=0.0,
    )


def _compare_all(config, like, layers, prompts, wanted, lengths, end_at) -> float:
    model = twins.ours(config, like)
    loaded = prepare_model(model, "")
    if layers == "fast" and speed_up(model) is None:
        loaded = prepare_model(twins.ours(config, like), "")
    executor = TorchExecutor(loaded, "verified", scenario.num_pages(loaded.num_layers), _ignore)
    try:
        return _compare(executor, loaded.num_layers, prompts, wanted, lengths, end_at)
    finally:
        executor.close()


def _compare(
    executor: TorchExecutor,
    num_layers: int,
    prompts: dict[str, list[int]],
    wanted: Scores,
    lengths: dict[str, int],
    end_at: float,
) -> float:
    worst = 0.0
    alone: dict[tuple[str, int], float] = {}
    for way in scenario.ways(lengths):
        for step, plan in zip(
            way.steps, scenario.plans(way, prompts, num_layers), strict=True
        ):
            if time.monotonic() > end_at:
                raise Unverified(
                    f"it could not be verified within {LIMIT_S:.0f} s: try again when this machine "
                    "has less to do"
                )
            result = executor.launch(plan).result()
            for row, part in enumerate(step):
                scores = [each.logprob for each in result.prompt_logprobs[row]]
                for at, score in enumerate(scores, part.start):
                    assert score is not None
                    want = float(wanted[part.prompt][at])
                    before = alone.get((part.prompt, at))
                    if len(step) > 1 and before is not None and not abs(score - before) <= AGREES:
                        raise Differs(
                            "rows of other requests change its answer "
                            f"(at position {at} by {abs(score - before):.2g})"
                        )
                    if not abs(score - want) <= AGREES:
                        raise Differs(
                            f"{way.name} differs from transformers "
                            f"(at position {at} by {abs(score - want):.2g})"
                        )
                    alone.setdefault((part.prompt, at), score)
                    worst = max(worst, abs(score - want))
    return worst


def _prompts(
    config: PreTrainedConfig, lengths: dict[str, int], seed: int
) -> dict[str, list[int]]:
    """Random tokens, one more than each length; no special ones."""
    generator = torch.Generator().manual_seed(seed)
    special = special_tokens(config)
    plain = torch.tensor([token for token in range(_vocab(config)) if token not in special])
    prompts = {
        name: plain[torch.randint(len(plain), (length + 1,), generator=generator)].tolist()
        for name, length in lengths.items()
    }
    shared = scenario.SHARED
    prompts["resumed"][:shared] = prompts["long"][:shared]
    return prompts


def _vocab(config: PreTrainedConfig) -> int:
    return min(getattr(config.get_text_config(), "vocab_size", None) or VOCAB, VOCAB)


def _ignore(moved: object) -> None:
    pass
