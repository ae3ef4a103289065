"""What a session left that its next prompt can build on."""

from services.frontend.core.sessions.prompt_reuse import unseen_text
from services.frontend.models.registry import ServedModel
from services.frontend.prepare.requests import Owner
from services.frontend.sessions.store import KnownSession
from shared.blocks import BlockKey, root_key, sequence_root, unpack_keys
from shared.errors import MalformedMessage
from shared.ids import HostId
from shared.wire.messages import unpack_ints
from shared.wire.sessions import SessionRecord


def stored_prompt(
    record: SessionRecord, model: ServedModel, owner: Owner, text: str
) -> tuple[list[int], list[BlockKey], str] | None:
    """The record's tokens and keys, and the text beyond them, if `text` extends the record's."""
    card = model.card
    if record.model_id != card.model_id or record.fingerprint != card.fingerprint:
        return None
    rest = unseen_text(text, record.prompt, (record.reply, record.stripped_reply))
    if rest is None:
        return None
    try:
        tokens, keys = unpack_ints(record.tokens), unpack_keys(record.block_keys)
    except (MalformedMessage, ValueError):
        return None
    known = keys[: record.num_computed // card.block_tokens] if record.num_computed > 0 else []
    return tokens, known if _is_made_by(record, model, owner) else [], rest


def kv_at_hosts(session: KnownSession, model: ServedModel, num_tokens: int) -> dict[HostId, int]:
    """Of a session's blocks by host, no more than a prompt has, the partial last one counted: a
    longer history that it had once makes no host a better place. None where the prompt is the first
    that is long."""
    record = session.record
    if record is not None and not is_same_kind(model, record.num_computed, num_tokens):
        return {}
    num_blocks = -(-num_tokens // model.card.block_tokens)
    return {host_id: min(num, num_blocks) for host_id, num in session.kv_at.items()}


def num_reusable(
    session: KnownSession, model: ServedModel, owner: Owner, num_known: int, num_tokens: int
) -> int:
    """How many of a prompt's first tokens the session's last turn left the KV of, if the prompt
    begins as that ended: where it does not, workers find nothing.

    Args:
        num_known: of the prompt's `num_tokens`, so many may be that turn's.
    """
    record = session.record
    if record is None or not _is_made_by(record, model, owner):
        return 0
    if not is_same_kind(model, record.num_computed, num_tokens):
        return 0
    return record.num_computed if 0 < record.num_computed <= num_known else 0


def is_same_kind(model: ServedModel, num_tokens: int, num_others: int) -> bool:
    """Whether KV of sequences of these lengths is of one kind."""
    short_max = model.card.short_rope_max
    return not short_max or (num_tokens > short_max) == (num_others > short_max)


def _is_made_by(record: SessionRecord, model: ServedModel, owner: Owner) -> bool:
    """Whether KV of the record's tokens is of these weights and this salt. With others the tokens
    are the same, what was computed of them is not."""
    made_by = record.model_id, record.fingerprint, record.cache_salt, record.adapter_hash
    card = model.card
    return made_by == (card.model_id, card.fingerprint, owner.cache_salt, model.adapter_hash)


def root_of(model: ServedModel, owner: Owner, num_tokens: int) -> BlockKey:
    """Parent of the first block of so many tokens."""
    card = model.card
    root = root_key(card.fingerprint, owner.tenant, model.adapter_hash, owner.cache_salt)
    return sequence_root(root, num_tokens, card.short_rope_max)
