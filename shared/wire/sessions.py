"""A session's record in Redis: what the next turn needs to extend the last one token for token.

Written by the frontend when a turn ends, read by it at the next turn, and by the kvstore to find a
session's blocks. Redis is an index: a lost record costs a new tokenization, and perhaps a
recompute, never an answer.
"""

from dataclasses import dataclass
from hashlib import blake2b, sha1

from shared.ids import ModelId, SessionId, TenantId
from shared.wire.messages.codec import decode, encode

DEFAULT_EXPIRY_S = 24 * 3600
MARK_BYTES = 16
MARK_CHARS = 24  # of a session's mark


@dataclass(frozen=True, slots=True)
class TextMark:
    """By what a text is known again without being kept: its length and a hash."""

    num_chars: int
    digest: str

    @classmethod
    def of(cls, text: str) -> "TextMark":
        """The mark of `text`."""
        digest = blake2b(text.encode(errors="surrogatepass"), digest_size=MARK_BYTES)
        return cls(len(text), digest.hexdigest())

    def is_at(self, text: str, start: int) -> bool:
        """Whether `text` says the same from `start` on.

        >>> TextMark.of("fox").is_at("a fox ran", 2), TextMark.of("fox").is_at("a fo", 2)
        (True, False)
        """
        end = start + self.num_chars
        return end <= len(text) and TextMark.of(text[start:end]) == self


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """Attributes:
    tokens: packed int32: the prompt and the reply of the last turn.
    num_computed: how many of `tokens`, from the first, the last turn left the KV of.
    block_keys: packed hex keys of the blocks of those, the last of which may have fewer tokens.
    prompt: the prompt as rendered by the chat template (or given to completions).
    reply: text of the reply's tokens that are in `tokens`.
    stripped_reply: the same as chat templates may show it.
    """

    session_id: SessionId
    tenant: TenantId
    model_id: ModelId
    fingerprint: str
    tokens: str
    block_keys: str
    prompt: TextMark
    reply: TextMark
    stripped_reply: TextMark
    num_tokens: int
    num_turns: int
    last_used: float  # wall-clock seconds
    expires: float  # wall-clock seconds
    cache_salt: str = ""
    adapter_hash: str = ""  # of the adapter of the last turn
    num_computed: int = 0


def session_redis_key(tenant: TenantId, session_id: SessionId) -> str:
    """Where the record is. Lengths keep two tenants' ids from meeting.

    >>> session_redis_key(TenantId("a"), SessionId("b:c"))
    'symphony:session:1:a:b:c'
    """
    return f"symphony:session:{len(tenant)}:{tenant}:{session_id}"


def session_epoch_redis_key(tenant: TenantId, session_id: SessionId) -> str:
    """The session's epoch: which deletion of it was the last. A turn that began before it
    stores no record.
    """
    return f"symphony:generation:{len(tenant)}:{tenant}:{session_id}"


def tombstone_redis_key(tenant: TenantId, session_id: SessionId) -> str:
    """Packed keys of the blocks of a deleted session, until all holders dropped them."""
    return f"symphony:tombstone:{len(tenant)}:{tenant}:{session_id}"


def deletions_redis_key(tenant: TenantId) -> str:
    """Counters of deletions of sessions that have no epoch, four bytes each; without a
    tenant those of all tenants that have none of their own.
    """
    return f"symphony:deletions:{len(tenant)}:{tenant}"


def session_index_redis_key(tenant: TenantId) -> str:
    """Sorted set of the tenant's sessions, by when they expire."""
    return f"symphony:sessions:{len(tenant)}:{tenant}"


def session_sizes_redis_key(tenant: TenantId) -> str:
    """Hash of what the tenant's sessions take in Redis, bytes; the sum is under the empty name."""
    return f"symphony:session_sizes:{len(tenant)}:{tenant}"


def session_mark(session_id: SessionId) -> str:
    """What ids of a session's responses begin with: it says where in Redis they are. Scripts there
    make it too (`services.frontend.sessions.redis_scripts`), with the one hash that they know.

    >>> session_mark(SessionId("fox"))
    'ff0f0a8b656f0b44c26933ac'
    """
    return sha1(session_id.encode(errors="surrogatepass")).hexdigest()[:MARK_CHARS]


def responses_redis_key(tenant: TenantId, mark: str) -> str:
    """Hash of the stored responses of the session with this mark."""
    return f"symphony:responses:{len(tenant)}:{tenant}:{mark}"


def encode_record(record: SessionRecord) -> bytes:
    """Record to the bytes stored in Redis."""
    return encode(record)


def decode_record(data: bytes) -> SessionRecord:
    """Bytes from Redis to a record.

    Raises:
        MalformedMessage: not a record of this release; treat the session as unknown.
    """
    return decode(SessionRecord, data)
