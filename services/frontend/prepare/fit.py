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
        max_tokens: that -1 leaves room for, of the reply; a part of the context, if this is None or
            no less than the context.

    Raises:
        InvalidRequest: nothing would be left.
    """
    keep, max_model_len = truncation.keep, model.card.max_model_len
    if keep == -1:
        is_limit = max_tokens is not None and max_tokens < max_model_len
        room = max_tokens if is_limit else max_model_len // ROOM_PARTS
        keep = max_model_len - max(room or 0, 1)
    if keep < 1:
        raise InvalidRequest(
            f"truncate_prompt_tokens: {truncation.keep} leaves nothing of the prompt",
            "truncate_prompt_tokens",
        )
    return keep


def max_new_tokens(asked: int | None, default: int, *, num_prompt: int, max_model_len: int) -> int:
    """Length the reply may have, never more than there is room for: clients send the limit of the
    model that they usually ask.

    Args:
        asked: the request's own limit; 0: only the prompt is of interest, but one token is
            generated all the same.
        default: the deployment's, 0 for none.

    Raises:
        InvalidRequest: the prompt leaves no room for a token.
    """
    room = max_model_len - num_prompt
    if room < 1:
        raise InvalidRequest(
            f"This model's maximum context length is {max_model_len} tokens. However, the prompt "
            f"has {num_prompt} tokens, which leaves none for a reply.",
            "messages",
            code="context_length_exceeded",
        )
    if asked is not None:
        return min(room, asked or 1)
    return min(room, default) if default else room
