"""Log-probabilities in OpenAI's two shapes."""

from collections.abc import Iterable
from typing import Any

from services.frontend.tokenizer import ModelTokenizer
from shared.messages import TokenLogprobs

LOWEST = -9999.0  # stands for minus infinity, which JSON does not have


def chat_entry(tokenizer: ModelTokenizer, entry: TokenLogprobs, num_top: int) -> dict[str, Any]:
    """One element of a chat choice's ``logprobs.content``."""
    return {
        **_token(tokenizer, entry.token, entry.logprob),
        "top_logprobs": [
            _token(tokenizer, token, logprob) for token, logprob in entry.top[:num_top]
        ],
    }


def completion_block(
    tokenizer: ModelTokenizer, entries: Iterable[tuple[TokenLogprobs, int]], num_top: int
) -> dict[str, Any]:
    """A completion choice's ``logprobs``: entries with where their text starts. The chosen token
    stands among the likeliest even if it is not one of them.
    """
    block: dict[str, Any] = {
        "text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": [],
    }  # fmt: skip
    for entry, start in entries:
        name = tokenizer.token_text(entry.token)
        block["text_offset"].append(start)
        block["tokens"].append(name)
        if entry.logprob is None:
            block["token_logprobs"].append(None)
            block["top_logprobs"].append(None)
            continue
        block["token_logprobs"].append(_finite(entry.logprob))
        top = {tokenizer.token_text(t): _finite(lp) for t, lp in entry.top[:num_top]}
        top.setdefault(name, _finite(entry.logprob))
        block["top_logprobs"].append(top)
    return block


def _token(tokenizer: ModelTokenizer, token: int, logprob: float | None) -> dict[str, Any]:
    return {
        "token": tokenizer.token_text(token),
        "logprob": _finite(logprob),
        "bytes": list(tokenizer.token_bytes(token)),
    }


def _finite(logprob: float | None) -> float:
    return LOWEST if logprob is None else max(logprob, LOWEST)
