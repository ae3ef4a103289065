"""From a request's fields to how tokens are chosen."""

from services.frontend.api.bodies import ChatBody, CompletionBody, Generate
from services.frontend.core.forms import NOT_HELD, Held
from shared.errors import InvalidRequest
from shared.messages import SamplingDefaults, SamplingParams
from shared.randomness import random_bytes

SEEDS = 2**63
ID_DIGITS_MAX = 12


def sampling_params(
    body: Generate,
    *,
    max_tokens: int,
    vocab_size: int,
    defaults: SamplingDefaults,
    held: Held = NOT_HELD,
) -> SamplingParams:
    """Sampling of the request's first choice; choice i uses `seed` + i.

    Args:
        defaults: for what the request does not say.

    Raises:
        InvalidRequest: a token id outside the vocabulary, or fields that contradict each other.
    """
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise InvalidRequest("min_tokens: more than max_tokens", "min_tokens")
    _check_ids("stop_token_ids", body.stop_token_ids, vocab_size)
    _check_ids("allowed_token_ids", body.allowed_token_ids, vocab_size)
    seed = (int.from_bytes(random_bytes(8)) if body.seed is None else body.seed) % SEEDS
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_or(body.temperature, defaults.temperature),
        top_p=_or(body.top_p, defaults.top_p),
        top_k=max(defaults.top_k if body.top_k is None else body.top_k, 0),
        min_p=_or(body.min_p, defaults.min_p),
        repetition_penalty=_or(body.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        logit_bias=_logit_bias(body.logit_bias or {}, vocab_size),
        seed=seed,
        allowed_token_ids=body.allowed_token_ids or [],
        stop_token_ids=body.stop_token_ids or [],
        ignore_eos=bool(body.ignore_eos),
        min_tokens=min_tokens,
        logprobs=_logprobs(body),
        prompt_logprobs=_prompt_logprobs(body),
        grammar=held.grammar,
        json_after=list(held.json_after),
    )


def max_new_tokens(
    asked: int | None, default: int, *, num_prompt: int, max_model_len: int, wanted: bool = True
) -> int:
    """Length the reply may have.

    Args:
        asked: the request's own limit.
        default: the house's, 0 for none.
        wanted: False when only the prompt is of interest; one token is generated all the same.

    Raises:
        InvalidRequest: it does not fit the model together with the prompt.
    """
    room = max_model_len - num_prompt
    need = max(asked or 1, 1) if wanted else 1
    if need > room:
        raise InvalidRequest(
            f"This model's maximum context length is {max_model_len} tokens. However, you "
            f"requested {num_prompt + need} tokens ({num_prompt} in the prompt, {need} in the "
            "completion).",
            "max_tokens" if num_prompt < max_model_len else "messages",
            code="context_length_exceeded",
        )
    if asked is not None:
        return need
    return min(room, default) if default and wanted else room if wanted else 1


def _logprobs(body: Generate) -> int | None:
    if isinstance(body, ChatBody):
        if body.top_logprobs and not body.logprobs:
            raise InvalidRequest("top_logprobs: only with logprobs = true", "top_logprobs")
        return (body.top_logprobs or 0) if body.logprobs else None
    assert isinstance(body, CompletionBody)
    return body.logprobs


def _prompt_logprobs(body: Generate) -> int | None:
    echoed = body.logprobs if isinstance(body, CompletionBody) and body.echo else None
    asked = [number for number in (body.prompt_logprobs, echoed) if number is not None]
    return max(asked, default=None)


def _check_ids(name: str, tokens: list[int] | None, vocab_size: int) -> None:
    for token in tokens or ():
        if token >= vocab_size:
            raise InvalidRequest(f"{name}: {token} is outside the vocabulary of {vocab_size}", name)


def _logit_bias(biases: dict[str, float], vocab_size: int) -> list[tuple[int, float]]:
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
