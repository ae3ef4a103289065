"""A session's record in Redis: what the next turn needs to extend the last one token for token.

Written by the frontend when a turn ends, read by it at the next turn, and by the kvstore to find a
session's blocks. Redis is an index: a lost record costs a new tokenization, and perhaps a
recompute, never an answer.
"""

from dataclasses import dataclass

from shared.ids import ModelId, SessionId, TenantId
from shared.messages.codec import decode, encode

DEFAULT_EXPIRY_S = 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """Attributes:
    tokens: packed int32: the prompt and the reply of the last turn.
    block_keys: packed hex keys of every full block of `tokens`.
    prompt_text: the prompt as rendered by the chat template (or given to completions).
    reply_text: text of the reply's tokens that are in `tokens`.
    """

    session_id: SessionId
    tenant: TenantId
    model_id: ModelId
    fingerprint: str
    tokens: str
    block_keys: str
    prompt_text: str
    reply_text: str
    num_tokens: int
    num_turns: int
    last_used: float  # wall-clock seconds
    expires: float  # wall-clock seconds
    cache_salt: str = ""


def session_redis_key(tenant: TenantId, session_id: SessionId) -> str:
    """Where the record is. Lengths keep two tenants' ids from meeting.

    >>> session_redis_key(TenantId("a"), SessionId("b:c"))
    'symphony:session:1:a:b:c'
    """
    return f"symphony:session:{len(tenant)}:{tenant}:{session_id}"


def block_redis_key(key_hex: str) -> str:
    """Set of host ids that hold this block."""
    return f"symphony:block:{key_hex}"


def host_blocks_redis_key(host_id: str) -> str:
    """Set of hex keys of the blocks that a host holds; its absence tells that Redis was wiped."""
    return f"symphony:host:{host_id}:blocks"


def encode_record(record: SessionRecord) -> bytes:
    """Record to the bytes stored in Redis."""
    return encode(record)


def decode_record(data: bytes) -> SessionRecord:
    """Bytes from Redis to a record.

    Raises:
        MalformedMessage: not a record of this release; treat the session as unknown.
    """
    return decode(SessionRecord, data)
