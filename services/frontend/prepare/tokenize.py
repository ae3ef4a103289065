"""Prompts: from text to tokens, extending a known session's instead of starting over."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from services.frontend import telemetry
from services.frontend.app import App
from services.frontend.core.claims import Claim
from services.frontend.core.reuse import unseen_text
from services.frontend.models import ServedModel
from services.frontend.rendering.texts import keys_of
from services.frontend.sessions import KnownSession
from shared.blocks import BlockKey, child_key, pack_keys, root_key, sequence_root, unpack_keys
from shared.errors import InvalidRequest, MalformedMessage
from shared.ids import HostId, SessionId, TenantId
from shared.messages import pack_ints, unpack_ints
from shared.sessions import SessionRecord, TextMark

CUT_MARGIN_TOKENS = 64  # beside a cut, words are cut into other tokens than within the whole text


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose turn it is: what separates one user's KV from another's."""

    tenant: TenantId
    session_id: SessionId | None
    cache_salt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedPrompt:
    """Attributes:
    text: by which the session's next turn is known to extend it; empty if none is to.
    keys: of every full block of `tokens`; empty without a session.
    num_turns: of the session, before this one.
    num_history: how many of `tokens`, from the first, the session's last turn left the KV of.
    claim: what may be left of it; None without a session.
    """

    text: str
    tokens: list[int]
    keys: list[BlockKey]
    num_turns: int = 0
    claim: Claim | None = None
    kv_at: Mapping[HostId, int] = field(default_factory=dict)
    num_history: int = 0


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


async def tokenize_text(
    app: App, model: ServedModel, owner: Owner, text: str, *, special: bool, is_cut: bool
) -> TokenizedPrompt:
    """Tokens of a prompt: a session's stored ones and what is new, or all anew.

    Args:
        is_cut: it will be cut if it is too long.

    Raises:
        InvalidRequest: it takes too long, or has more tokens than the model takes.
        NoCapacity: too many long texts are under way.
    """
    encode = partial(
        app.texts.encode, model.tokenizer, tokens_max=None if is_cut else model.card.max_model_len
    )
    if owner.session_id is None:
        tokens = await encode(text, special=special)
        return TokenizedPrompt(text=text, tokens=tokens, keys=[])
    claim, session = await _claimed(app, owner.tenant, owner.session_id)
    record = session.record
    num_turns = record.num_turns if record is not None else 0
    stored = _stored(record, model, owner, text) if record is not None else None
    telemetry.SESSIONS_REUSED.labels("false" if stored is None else "true").inc()
    known: list[BlockKey] = []
    num_history = 0
    if stored is None:
        tokens = await encode(text, special=special)
    else:
        tokens, known, rest = stored
        num_known = len(tokens)
        tokens += await encode(rest, special=False) if rest else []
        num_history = _num_history(session, model, owner, num_known, len(tokens))
        known = known if num_history else []
    keys = await keys_of(_root(model, owner, len(tokens)), known, tokens, model.card.block_tokens)
    return TokenizedPrompt(
        text=text,
        tokens=tokens,
        keys=keys,
        num_turns=num_turns,
        claim=claim,
        kv_at=_kv_at(session, model, len(tokens)),
        num_history=num_history,
    )


def fitting(
    model: ServedModel, text: str, *, keep: int | None = None, keep_start: bool = False
) -> str:
    """A text that may fit the model as far as its length tells, before it is tokenized.

    Args:
        keep: tokens that will be kept of it; None: all. More than they can have is cut off.
        keep_start: what is cut off is the end.

    Raises:
        InvalidRequest: it is too long whatever its tokens are.
    """
    card, chars_per_token = model.card, model.tokenizer.chars_per_token_max
    if keep is not None:
        num_chars = (keep + CUT_MARGIN_TOKENS) * chars_per_token
        return text[:num_chars] if keep_start else text[-num_chars:]
    if len(text) <= card.max_model_len * chars_per_token:
        return text
    raise InvalidRequest(
        f"This model's maximum context length is {card.max_model_len} tokens. However, the prompt "
        f"has {len(text)} characters, and no token has more than {chars_per_token}.",
        "messages",
        code="context_length_exceeded",
    )


async def take_tokens(
    app: App, model: ServedModel, owner: Owner, tokens: list[int], text: str
) -> TokenizedPrompt:
    """A prompt that is given as tokens; `text` is theirs."""
    if owner.session_id is None:
        return await given_tokens(model, owner, tokens, text=text)
    claim, session = await _claimed(app, owner.tenant, owner.session_id)
    num_turns = session.record.num_turns if session.record is not None else 0
    prompt = await given_tokens(model, owner, tokens, text=text, num_turns=num_turns, claim=claim)
    return replace(
        prompt,
        kv_at=_kv_at(session, model, len(tokens)),
        num_history=_num_history(session, model, owner, len(tokens), len(tokens)),
    )


def _kv_at(session: KnownSession, model: ServedModel, num_tokens: int) -> dict[HostId, int]:
    """Of a session's blocks by host, no more than a prompt has, the partial last one counted: a
    longer history that it had once makes no host a better place. None where the prompt is the first
    that is long."""
    record = session.record
    if record is not None and not _is_alike(model, record.num_computed, num_tokens):
        return {}
    num_blocks = -(-num_tokens // model.card.block_tokens)
    return {host_id: min(num, num_blocks) for host_id, num in session.kv_at.items()}


def _num_history(
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
    if not _is_alike(model, record.num_computed, num_tokens):
        return 0
    return record.num_computed if 0 < record.num_computed <= num_known else 0


def _is_alike(model: ServedModel, num_tokens: int, num_others: int) -> bool:
    """Whether KV of sequences of these lengths is of one kind."""
    short_max = model.card.short_rope_max
    return not short_max or (num_tokens > short_max) == (num_others > short_max)


async def given_tokens(
    model: ServedModel,
    owner: Owner,
    tokens: list[int],
    *,
    text: str,
    num_turns: int = 0,
    claim: Claim | None = None,
) -> TokenizedPrompt:
    """A prompt of which the tokens are known.

    Args:
        text: what the session's next turn is to extend. An empty one is never extended: the next
            turn is tokenized from its beginning.
    """
    if owner.session_id is None:
        return TokenizedPrompt(text="", tokens=tokens, keys=[])
    keys = await keys_of(_root(model, owner, len(tokens)), [], tokens, model.card.block_tokens)
    return TokenizedPrompt(text=text, tokens=tokens, keys=keys, num_turns=num_turns, claim=claim)


def num_computed(prompt: TokenizedPrompt, reply: Reply) -> int:
    """How many tokens of a prompt and its reply have KV. A turn's last token is never run on,
    unless it is an end that the next prompt has otherwise.
    """
    num_prompt = len(prompt.tokens)
    return num_prompt + min(len(reply.tokens), max(reply.num_generated - 1, 0))


async def remember(
    app: App,
    model: ServedModel,
    owner: Owner,
    prompt: TokenizedPrompt,
    reply: Reply,
) -> None:
    """Store what the session's next turn can build on, unless the session was deleted since this
    turn began.
    """
    assert owner.session_id is not None and prompt.claim is not None
    if prompt.claim.is_forgotten:
        return
    tokens = prompt.tokens + reply.tokens
    num_with_kv = num_computed(prompt, reply)
    is_alike = _is_alike(model, len(prompt.tokens), num_with_kv)
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
            expires=now_s + app.sessions.expiry_s,
            cache_salt=owner.cache_salt,
            adapter_hash=model.adapter_hash,
            num_computed=num_with_kv,
        ),
        prompt.claim.generation,
        app.quotas.of(owner.tenant),
    )


async def _keys_to_end(
    model: ServedModel, owner: Owner, known: list[BlockKey], tokens: list[int]
) -> list[BlockKey]:
    """Keys of every block of these tokens, the partial last one's too."""
    root, block_tokens = _root(model, owner, len(tokens)), model.card.block_tokens
    keys = await keys_of(root, known[: len(tokens) // block_tokens], tokens, block_tokens)
    rest = tokens[len(keys) * block_tokens :]
    return [*keys, child_key(keys[-1] if keys else root, rest)] if rest else keys


async def _claimed(app: App, tenant: TenantId, session_id: SessionId) -> tuple[Claim, KnownSession]:
    """The request's claim, made before the session is looked up, and what is known of that."""
    claim = app.claims.make(tenant, session_id)
    known = await app.sessions.get(tenant, session_id)
    claim.generation = known.generation
    return claim, known


def _stored(
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


def _is_made_by(record: SessionRecord, model: ServedModel, owner: Owner) -> bool:
    """Whether KV of the record's tokens is of these weights and this salt. With others the tokens
    are the same, what was computed of them is not."""
    made_by = record.model_id, record.fingerprint, record.cache_salt, record.adapter_hash
    card = model.card
    return made_by == (card.model_id, card.fingerprint, owner.cache_salt, model.adapter_hash)


def _root(model: ServedModel, owner: Owner, num_tokens: int) -> BlockKey:
    """Parent of the first block of so many tokens."""
    card = model.card
    root = root_key(card.fingerprint, owner.tenant, model.adapter_hash, owner.cache_salt)
    return sequence_root(root, num_tokens, card.short_rope_max)
