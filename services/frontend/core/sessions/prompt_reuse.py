"""Extending a session's stored tokens, so that its KV cache is met token for token."""

from collections.abc import Sequence

from shared.blocks import BlockKey, chain_keys
from shared.wire.sessions import TextMark


def unseen_text(
    prompt: str, known_prompt: TextMark, known_replies: Sequence[TextMark]
) -> str | None:
    """What `prompt` says beyond an earlier prompt and one form of its reply; None if it says
    something else.

    >>> unseen_text("Q: 1+1 A: 2 Q: 2+2 A:", TextMark.of("Q: 1+1 A:"), [TextMark.of(" 2")])
    ' Q: 2+2 A:'
    """
    if not known_prompt.num_chars or not known_prompt.is_at(prompt, 0):
        return None
    for reply in known_replies:
        if reply.is_at(prompt, known_prompt.num_chars):
            return prompt[known_prompt.num_chars + reply.num_chars :]
    return None


def extend_keys(
    root: BlockKey, known: Sequence[BlockKey], tokens: Sequence[int], block_tokens: int
) -> list[BlockKey]:
    """Keys of every full block of `tokens`, the first of which are `known` already.

    >>> from shared.blocks import root_key
    >>> root = root_key("m", "t")
    >>> extend_keys(root, chain_keys(root, [1, 2], 2), [1, 2, 3, 4], 2) == chain_keys(
    ...     root, [1, 2, 3, 4], 2
    ... )
    True
    """
    keys = list(known[: len(tokens) // block_tokens])
    parent = keys[-1] if keys else root
    return keys + chain_keys(parent, tokens[len(keys) * block_tokens :], block_tokens)
