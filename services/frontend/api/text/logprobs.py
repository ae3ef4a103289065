"""Log-probabilities in OpenAI's two shapes; those of a prompt in vLLM's."""

from collections.abc import Callable, Iterable
from typing import Any

from services.frontend.rendering.tokenizer import ModelTokenizer
from shared.wire.messages import TokenLogprobs

NameOf = Callable[[int], str]
LOWEST = -9999.0  # stands for minus infinity, which JSON does not have


def name_of(tokenizer: ModelTokenizer, *, as_ids: bool) -> NameOf:
    """How tokens are written: as text, or as vLLM's ``token_id:123``."""
    return "token_id:{}".format if as_ids else tokenizer.token_text


def chat_entry(
    tokenizer: ModelTokenizer, name: NameOf, entry: TokenLogprobs, num_top: int
) -> dict[str, Any]:
    """One element of a chat choice's ``logprobs.content``."""

    def written(token: int, logprob: float | None) -> dict[str, Any]:
        return {
            "token": name(token),
            "logprob": _finite(logprob),
            "bytes": list(tokenizer.token_bytes(token)),
        }

    top = [written(token, logprob) for token, logprob in entry.top[:num_top]]
    return {**written(entry.token, entry.logprob), "top_logprobs": top}


def completion_block(
    name: NameOf, entries: Iterable[tuple[TokenLogprobs, int]], num_top: int
) -> dict[str, Any]:
    """A completion choice's ``logprobs``: entries with where their text starts. The chosen token
    stands among the likeliest even if it is not one of them.
    """
    block: dict[str, Any] = {
        "text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": [],
    }  # fmt: skip
    for entry, start in entries:
        chosen = name(entry.token)
        block["text_offset"].append(start)
        block["tokens"].append(chosen)
        if entry.logprob is None:
            block["token_logprobs"].append(None)
            block["top_logprobs"].append(None)
            continue
        block["token_logprobs"].append(_finite(entry.logprob))
        top = {name(token): _finite(logprob) for token, logprob in entry.top[:num_top]}
        top.setdefault(chosen, _finite(entry.logprob))
        block["top_logprobs"].append(top)
    return block


def prompt_list(
    name: NameOf, entries: Iterable[TokenLogprobs], num_top: int
) -> list[dict[str, Any] | None]:
    """vLLM's ``prompt_logprobs``: of each token but the first, the likeliest and its own by their
    ids. The rank of one that is not among the likeliest is not known.
    """

    def written(entry: TokenLogprobs) -> dict[str, Any]:
        ranks = {token: rank for rank, (token, _) in enumerate(entry.top, start=1)}
        shown: dict[int, float | None] = dict(entry.top[:num_top])
        shown.setdefault(entry.token, entry.logprob)
        return {
            str(token): {
                "logprob": _finite(logprob),
                "rank": ranks.get(token),
                "decoded_token": name(token),
            }
            for token, logprob in shown.items()
        }

    return [None if entry.logprob is None else written(entry) for entry in entries]


def _finite(logprob: float | None) -> float:
    return LOWEST if logprob is None else max(logprob, LOWEST)
