"""A small model twice: as transformers computes it, and as this engine does."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from services.worker.device.decoder.attention import ATTENTION, UnsupportedModelError

PARAMETERS_MAX = 64_000_000
GAIN = 1.2  # of a matrix: what goes through many of them neither dies nor drowns the rest
SPREAD = 0.2  # of what is one number a channel: norms and biases must matter


class NotBuilt(Exception):
    """transformers itself cannot make or run a model of this config."""


def reference(config: PreTrainedConfig, seed: int) -> Any:
    """transformers' own model with random weights, float32, on the CPU, plain attention.

    Raises:
        NotBuilt: it cannot be made, or has more than `PARAMETERS_MAX` parameters.
    """
    try:
        with torch.device("meta"):
            empty = _made(config, "eager")
        size = sum(parameter.numel() for parameter in empty.parameters())
        if size > PARAMETERS_MAX:
            raise NotBuilt(f"it has {size / 1e6:.0f} million parameters")
        with _seeded(seed):
            model = _made(config, "eager")
            _fill(model)
    except NotBuilt:
        raise
    except Exception as error:  # a config that was cut says anything
        raise NotBuilt(f"{type(error).__name__}: {_line(error)}") from error
    return model


def ours(config: PreTrainedConfig, like: Any) -> Any:
    """The same model with this engine's attention.

    Raises:
        UnsupportedModelError: its attention cannot be replaced.
    """
    try:
        model = _made(config, ATTENTION)
    except (ValueError, ImportError) as error:
        raise UnsupportedModelError(f"its attention cannot be replaced ({_line(error)})") from error
    except KeyError as error:
        if error.args != (ATTENTION,):
            raise
        raise UnsupportedModelError(
            "it computes attention in classes of its own, which paged attention cannot replace"
        ) from error
    model.load_state_dict(like.state_dict())
    for (_, mine), (_, theirs) in zip(model.named_buffers(), like.named_buffers(), strict=True):
        mine.copy_(theirs)
    return model


def log_probabilities(model: Any, tokens: list[int]) -> torch.Tensor:
    """Of each token after the first, float32 ``[T - 1]``: one sequence, one pass, no cache.

    Raises:
        NotBuilt: transformers cannot compute it.
    """
    ids = torch.tensor([tokens[:-1]])
    try:
        with torch.inference_mode():
            logits = model(ids, use_cache=False).logits[0].float()
    except Exception as error:  # as above
        text = f"{len(tokens) - 1} tokens: {type(error).__name__}: {_line(error)}"
        raise NotBuilt(text) from error
    found: torch.Tensor = logits.log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    if not found.isfinite().all():
        raise NotBuilt("its numbers are not finite")
    return found


def _made(config: PreTrainedConfig, attention: str) -> Any:
    model: Any = AutoModelForCausalLM.from_config(
        copy.deepcopy(config), attn_implementation=attention, dtype=torch.float32
    )
    model.requires_grad_(False).train(False)
    return model


@torch.no_grad()
def _fill(model: Any) -> None:
    for parameter in model.parameters():
        noise = torch.randn_like(parameter)
        if parameter.dim() > 1:
            parameter.copy_(noise * GAIN / parameter.shape[-1] ** 0.5)
        else:
            parameter.add_(SPREAD * noise)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else ""
