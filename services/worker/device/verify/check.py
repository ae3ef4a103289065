"""Holds what this engine computes for a family against transformers."""

import logging
import time
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig

from services.worker.device.attention import UnsupportedModelError
from services.worker.device.layers import Mode, speed_up
from services.worker.device.model import prepare_model
from services.worker.device.torch_executor import TorchExecutor
from services.worker.device.verify import scenario, twins
from services.worker.device.verify.cut import LEVELS, VOCAB, Level, cut, special_tokens
from services.worker.device.verify.twins import NotBuilt

log = logging.getLogger(__name__)

AGREES = 2e-4  # of a log-probability: float32, summed in another order
SEEDS = (1, 2)
LIMIT_S = 120.0

Scores = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Checked:
    """What was done.

    Attributes:
        level: how the config was cut.
        worst: largest difference of a log-probability.
    """

    level: Level
    ways: list[str]
    num_parameters: int
    worst: float


class Differs(UnsupportedModelError):
    """A log-probability is another one than transformers'."""


def check(config: PreTrainedConfig, layers: Mode) -> Checked:
    """See that small models of this config are computed as transformers computes them.

    Args:
        layers: as in `load_model`.

    Raises:
        UnsupportedModelError: they are not, or no small model could be made; says which.
    """
    end_at = time.monotonic() + LIMIT_S
    why = ""
    for level in LEVELS:
        try:
            return _check_seeds(cut(config, level), level, layers, end_at)
        except NotBuilt as error:
            why = why or str(error)
        except (TypeError, ValueError, AttributeError, ZeroDivisionError, KeyError) as error:
            raise
    raise UnsupportedModelError(f"it could not be verified: no small model of it runs ({why})")


def _check_seeds(config: PreTrainedConfig, level: Level, layers: Mode, end_at: float) -> Checked:
    """A difference must show with other weights too: where experts are chosen, a tie may be broken
    by rounding."""
    for seed in SEEDS[:-1]:
        try:
            return _check(config, level, layers, seed, end_at)
        except Differs as error:
            log.debug("differs", extra={"error": error.message, "seed": seed})
    return _check(config, level, layers, SEEDS[-1], end_at)


def _check(
    config: PreTrainedConfig, level: Level, layers: Mode, seed: int, end_at: float
) -> Checked:
    like = twins.reference(config, seed)
    positions = _longest(config)
    lengths = scenario.lengths(positions)
    prompts = _prompts(config, lengths, seed)
    wanted = {name: twins.log_probabilities(like, prompt) for name, prompt in prompts.items()}
    model = twins.ours(config, like)
    loaded = prepare_model(model, "")
    if layers == "fast" and speed_up(model) is None:
        model = twins.ours(config, like)
        loaded = prepare_model(model, "")
    executor = TorchExecutor(loaded, "verified", scenario.num_pages(loaded.num_layers), _ignore)
    try:
        worst = _compare(executor, loaded.num_layers, prompts, wanted, lengths, end_at)
    finally:
        executor.close()
    size = sum(parameter.numel() for parameter in like.parameters())
    return Checked(level, [way.name for way in scenario.ways(lengths)], size, worst)


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
                raise UnsupportedModelError(
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


def _longest(config: PreTrainedConfig) -> int:
    from services.worker.device.model import _max_model_len

    return _max_model_len(config.get_text_config())


def _ignore(moved: object) -> None:
    pass
