"""What fits the model: how much of a prompt is kept, and how long the reply may be."""

from services.frontend.models.registry import ServedModel
from services.frontend.prepare.requests import GenerationRequest, Truncation
from shared.errors import InvalidRequest

CUT_MARGIN_TOKENS = 64  # beside a cut, words are cut into other tokens than within the whole text
ROOM_PARTS = 8  # of a context, one of which is for a reply of any length


def fitting_text(model: ServedModel, asked: GenerationRequest, text: str) -> str:
    """As much of a prompt's text as can matter, before it is tokenized: more than the kept tokens
    can have is cut off.

    Raises:
        InvalidRequest: it is too long whatever its tokens are, or nothing would be left.
    """
    card, chars_per_token = model.card, model.tokenizer.chars_per_token_max
    truncation = asked.truncation
    if truncation is not None:
        keep = num_kept(model, truncation, asked.max_tokens)
        num_chars = (keep + CUT_MARGIN_TOKENS) * chars_per_token
        return text[:num_chars] if truncation.keep_start else text[-num_chars:]
    if len(text) <= card.max_model_len * chars_per_token:
        return text
    raise InvalidRequest(
        f"This model's maximum context length is {card.max_model_len} tokens. However, the prompt "
        f"has {len(text)} characters, and no token has more than {chars_per_token}.",
        "messages",
        code="context_length_exceeded",
    )


def cut_tokens(
    model: ServedModel, truncation: Truncation | None, max_tokens: int | None, tokens: list[int]
) -> list[int]:
    """What a truncation leaves of a prompt; the same list where that is all of it.

    Raises:
        InvalidRequest: nothing would be left.
    """
    if truncation is None:
        return tokens
    keep = num_kept(model, truncation, max_tokens)
    if len(tokens) <= keep:
        return tokens
    return tokens[:keep] if truncation.keep_start else tokens[-keep:]


def num_kept(model: ServedModel, truncation: Truncation, max_tokens: int | None) -> int:
    """Tokens that are kept of a prompt, at least one.

    Args:
        max_tokens: that -1 leaves room for, of the reply; None: a part of the context.

    Raises:
        InvalidRequest: nothing would be left.
    """
    keep, max_model_len = truncation.keep, model.card.max_model_len
    if keep == -1:
        room = max_model_len // ROOM_PARTS if max_tokens is None else max_tokens
        keep = max_model_len - max(room, 1)
    if keep < 1:
        raise InvalidRequest(
            f"truncate_prompt_tokens: {truncation.keep} leaves nothing of the prompt",
            "truncate_prompt_tokens",
        )
    return keep


def max_new_tokens(asked: int | None, default: int, *, num_prompt: int, max_model_len: int) -> int:
    """Length the reply may have.

    Args:
        asked: the request's own limit; 0: only the prompt is of interest, but one token is
            generated all the same.
        default: the deployment's, 0 for none.

    Raises:
        InvalidRequest: it does not fit the model together with the prompt.
    """
    room = max_model_len - num_prompt
    need = asked or 1
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
    return min(room, default) if default else room
