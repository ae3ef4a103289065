"""What sampling parameters may be: checked at the edge, and again by the worker, which trusts no
frontend.
"""

from collections.abc import Iterable

from shared.wire.messages import SamplingParams

TOKEN_IDS_MAX = 1024  # of each list of token ids
LOGPROBS_MAX = 20
GRAMMAR_BYTES_MAX = 131_072
MARKS_MAX = 512  # behind which JSON comes
MARK_CHARS_MAX = 262_144
# Divisors below these would overflow: such values count as these.
TEMPERATURE_MIN = 0.01
REPETITION_PENALTY_MIN = 0.01

RANGES = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, 10.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
BIAS_MAX = 100.0


def has_penalties(params: SamplingParams) -> bool:
    """Whether the tokens so far change which one is next."""
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )


def depends_on_reply(params: SamplingParams) -> bool:
    """Whether what the turn has said so far decides which tokens may be next, or how likely."""
    return has_penalties(params) or bool(params.grammar)


def flaw_in(params: SamplingParams, vocab_size: int) -> str:
    """What keeps tokens from being chosen like this; empty if nothing does.

    >>> flaw_in(SamplingParams(max_tokens=1, stop_token_ids=[7]), vocab_size=7)
    'stop_token_ids: 7 is outside the vocabulary of 7'
    """
    for name, (low, high) in RANGES.items():
        if not low <= getattr(params, name) <= high:  # NaN is in no range
            return f"{name}: {getattr(params, name)} is not within {low:g} and {high:g}"
    for name in ("top_k", "min_tokens"):
        if getattr(params, name) < 0:
            return f"{name}: {getattr(params, name)} is negative"
    if params.max_tokens < 1:
        return f"max_tokens: {params.max_tokens} is less than one"
    for name in ("logprobs", "prompt_logprobs"):
        number = getattr(params, name)
        if number is not None and not 0 <= number <= LOGPROBS_MAX:
            return f"{name}: {number} is not within 0 and {LOGPROBS_MAX}"
    if any(not abs(bias) <= BIAS_MAX for _, bias in params.logit_bias):
        return f"logit_bias: a bias is not within -{BIAS_MAX:g} and {BIAS_MAX:g}"
    if len(params.grammar.encode()) > GRAMMAR_BYTES_MAX:
        return f"grammar: it takes more than {GRAMMAR_BYTES_MAX} bytes"
    if len(params.json_after) > MARKS_MAX or sum(map(len, params.json_after)) > MARK_CHARS_MAX:
        return f"json_after: more than {MARKS_MAX} marks, or {MARK_CHARS_MAX} characters in them"
    if params.grammar and params.allowed_token_ids:
        return "allowed_token_ids: not together with a grammar"
    return (
        _flaw_in_ids("logit_bias", [token for token, _ in params.logit_bias], vocab_size)
        or _flaw_in_ids("stop_token_ids", params.stop_token_ids, vocab_size)
        or _flaw_in_ids("allowed_token_ids", params.allowed_token_ids, vocab_size)
    )


def _flaw_in_ids(name: str, tokens: Iterable[int], vocab_size: int) -> str:
    ids = list(tokens)
    if len(ids) > TOKEN_IDS_MAX:
        return f"{name}: more than {TOKEN_IDS_MAX} token ids"
    outside = next((token for token in ids if not 0 <= token < vocab_size), None)
    return "" if outside is None else f"{name}: {outside} is outside the vocabulary of {vocab_size}"
