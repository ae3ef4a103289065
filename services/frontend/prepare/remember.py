"""What a turn leaves for its session's next one."""

from dataclasses import dataclass

from services.frontend.app import App
from services.frontend.models.registry import ServedModel
from services.frontend.prepare.history import is_same_kind, root_of
from services.frontend.prepare.requests import Owner
from services.frontend.prepare.tokenize import TokenizedPrompt
from services.frontend.rendering.texts import keys_of
from shared.blocks import BlockKey, child_key, pack_keys
from shared.wire.messages import pack_ints
from shared.wire.sessions import SessionRecord, TextMark


@dataclass(frozen=True, slots=True)
class Reply:
    """What a turn said.

    Attributes:
        tokens: that its session's next turn goes on from.
        text: of those.
        num_generated: tokens that its worker made at least.
    """

    tokens: list[int]
    text: str
    num_generated: int


def num_computed(prompt: TokenizedPrompt, reply: Reply) -> int:
    """How many tokens of a prompt and its reply have KV. A turn's last token is never run on,
    unless it is an end that the next prompt has otherwise.
    """
    num_prompt = len(prompt.tokens)
    return num_prompt + min(len(reply.tokens), max(reply.num_generated - 1, 0))


async def remember(
    app: App, model: ServedModel, owner: Owner, prompt: TokenizedPrompt, reply: Reply
) -> None:
    """Store what the session's next turn can build on, unless the session was deleted since this
    turn began.
    """
    assert owner.session_id is not None and prompt.claim is not None
    if prompt.claim.is_forgotten:
        return
    tokens = prompt.tokens + reply.tokens
    num_with_kv = num_computed(prompt, reply)
    is_alike = is_same_kind(model, len(prompt.tokens), num_with_kv)
    known = prompt.keys if is_alike else []
    keys = await _keys_to_end(model, owner, known, tokens[:num_with_kv])
    now_s = app.clock.wall_ns() / 1e9
    await app.sessions.put(
        SessionRecord(
            session_id=owner.session_id,
            tenant=owner.tenant,
            model_id=model.card.model_id,
            fingerprint=model.card.fingerprint,
            tokens=pack_ints(tokens),
            block_keys=pack_keys(keys),
            prompt=TextMark.of(prompt.text),
            reply=TextMark.of(reply.text),
            stripped_reply=TextMark.of(reply.text.strip()),
            num_tokens=len(tokens),
            num_turns=prompt.num_turns + 1,
            last_used=now_s,
            expires=now_s + app.sessions.record_expiry_s,
            cache_salt=owner.cache_salt,
            adapter_hash=model.adapter_hash,
            num_computed=num_with_kv,
        ),
        prompt.claim.epoch,
        app.quotas.of(owner.tenant),
    )


async def _keys_to_end(
    model: ServedModel, owner: Owner, known: list[BlockKey], tokens: list[int]
) -> list[BlockKey]:
    """Keys of every block of these tokens, the partial last one's too."""
    root, block_tokens = root_of(model, owner, len(tokens)), model.card.block_tokens
    keys = await keys_of(root, known[: len(tokens) // block_tokens], tokens, block_tokens)
    rest = tokens[len(keys) * block_tokens :]
    return [*keys, child_key(keys[-1] if keys else root, rest)] if rest else keys
