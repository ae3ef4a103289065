"""Extending a session's stored tokens, so that its KV cache is met token for token."""

from collections.abc import Sequence

from shared.blocks import BlockKey, child_key


def unseen_text(prompt: str, known_prompt: str, known_reply: str) -> str | None:
    """What `prompt` says beyond an earlier prompt and its reply; None if it says something else.

    Chat templates may strip a reply, so its stripped form counts too.

    >>> unseen_text("Q: 1+1 A: 2 Q: 2+2 A:", "Q: 1+1 A:", " 2")
    ' Q: 2+2 A:'
    """
    if not known_prompt or not prompt.startswith(known_prompt):
        return None
    for reply in (known_reply, known_reply.strip()):
        if prompt.startswith(reply, len(known_prompt)):
            return prompt[len(known_prompt) + len(reply) :]
    return None


def extend_keys(
    root: BlockKey, known: Sequence[BlockKey], tokens: Sequence[int], block_tokens: int
) -> list[BlockKey]:
    """Keys of every full block of `tokens`, the first of which are `known` already.

    >>> from shared.blocks import chain_keys, root_key
    >>> root = root_key("m", "t")
    >>> extend_keys(root, chain_keys(root, [1, 2], 2), [1, 2, 3, 4], 2) == chain_keys(
    ...     root, [1, 2, 3, 4], 2
    ... )
    True
    """
    keys = list(known[: len(tokens) // block_tokens])
    parent = keys[-1] if keys else root
    for start in range(len(keys) * block_tokens, len(tokens) - block_tokens + 1, block_tokens):
        parent = child_key(parent, tokens[start : start + block_tokens])
        keys.append(parent)
    return keys
