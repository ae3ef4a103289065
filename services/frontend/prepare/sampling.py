"""How tokens are chosen: what the request wants, by the model that serves it."""

from collections.abc import Mapping, Sequence

from services.frontend.core.replies.forms import NOT_HELD, Held
from services.frontend.models.registry import ServedModel
from services.frontend.prepare.requests import SamplingRequest
from shared.errors import InvalidRequest
from shared.randomness import random_bytes
from shared.wire.messages import SamplingParams

SEEDS = 2**63
ID_DIGITS_MAX = 12


def sampling_params(
    asked: SamplingRequest, model: ServedModel, *, max_tokens: int, held: Held = NOT_HELD
) -> SamplingParams:
    """Sampling of the request's first choice; choice i uses `seed` + i.

    Raises:
        InvalidRequest: a token id outside the vocabulary, or `min_tokens` above `max_tokens`.
    """
    vocab_size, defaults = model.vocab_size, model.card.sampling
    if asked.min_tokens > max_tokens:
        raise InvalidRequest("min_tokens: more than max_tokens", "min_tokens")
    _check_ids("stop_token_ids", asked.stop_token_ids, vocab_size)
    _check_ids("allowed_token_ids", asked.allowed_token_ids, vocab_size)
    seed = (int.from_bytes(random_bytes(8)) if asked.seed is None else asked.seed) % SEEDS
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_or(asked.temperature, defaults.temperature),
        top_p=_or(asked.top_p, defaults.top_p),
        top_k=max(defaults.top_k if asked.top_k is None else asked.top_k, 0),
        min_p=_or(asked.min_p, defaults.min_p),
        repetition_penalty=_or(asked.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=_or(asked.presence_penalty, 0.0),
        frequency_penalty=_or(asked.frequency_penalty, 0.0),
        logit_bias=_logit_bias(asked.logit_bias, vocab_size),
        seed=seed,
        allowed_token_ids=list(asked.allowed_token_ids),
        stop_token_ids=list(asked.stop_token_ids),
        ignore_eos=asked.ignore_eos,
        min_tokens=asked.min_tokens,
        logprobs=asked.logprobs,
        prompt_logprobs=asked.prompt_logprobs,
        grammar=held.grammar,
        json_after=list(held.json_after),
    )


def _check_ids(name: str, tokens: Sequence[int], vocab_size: int) -> None:
    for token in tokens:
        if token >= vocab_size:
            raise InvalidRequest(f"{name}: {token} is outside the vocabulary of {vocab_size}", name)


def _logit_bias(biases: Mapping[str, float], vocab_size: int) -> list[tuple[int, float]]:
    pairs: dict[int, float] = {}
    for key, bias in biases.items():
        token = _token_id(key, vocab_size)
        if token is None:
            raise InvalidRequest(
                f"logit_bias: {key[:40]!r} is no token id below {vocab_size}", "logit_bias"
            )
        if token in pairs:
            raise InvalidRequest(f"logit_bias: {token} is there twice", "logit_bias")
        pairs[token] = bias
    return list(pairs.items())


def _token_id(text: str, vocab_size: int) -> int | None:
    if len(text) > ID_DIGITS_MAX or not (text.isascii() and text.isdigit()):
        return None
    token = int(text)
    return token if token < vocab_size else None


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
