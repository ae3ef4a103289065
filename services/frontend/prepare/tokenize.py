"""Prompts: from text to tokens, extending a known session's instead of starting over."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from services.frontend.app import App
from services.frontend.core.sessions.open_sessions import OpenSession
from services.frontend.models.registry import ServedModel
from services.frontend.observability import telemetry
from services.frontend.prepare.fit import cut_tokens, fitting_text
from services.frontend.prepare.history import kv_at_hosts, num_reusable, root_of, stored_prompt
from services.frontend.prepare.requests import GenerationRequest, Owner, Truncation
from services.frontend.rendering.texts import keys_of
from services.frontend.sessions.store import KnownSession
from shared.blocks import BlockKey
from shared.errors import InvalidRequest
from shared.ids import HostId, SessionId, TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedPrompt:
    """Attributes:
    text: by which the session's next turn is known to extend it; empty if none is to.
    keys: of every full block of `tokens`; empty without a session.
    num_turns: of the session, before this one.
    images: files, in base64, that its placeholders stand for.
    num_history: how many of `tokens`, from the first, the session's last turn left the KV of.
    claim: what may be left of it; None without a session.
    """

    text: str
    tokens: list[int]
    keys: list[BlockKey]
    num_turns: int = 0
    claim: OpenSession | None = None
    kv_at: Mapping[HostId, int] = field(default_factory=dict)
    num_history: int = 0
    images: Sequence[str] = ()


async def tokenized_text(
    app: App, model: ServedModel, asked: GenerationRequest, text: str
) -> TokenizedPrompt:
    """The prompt that a text makes: of it, what is kept.

    Raises:
        InvalidRequest, NoCapacity: as `_tokenize`; it is too long, or nothing would be kept.
    """
    text = fitting_text(model, asked, text)
    is_cut = asked.truncation is not None
    prompt = await _tokenize(app, model, asked.owner, text, special=asked.special, is_cut=is_cut)
    return await cut(model, asked.owner, asked.truncation, asked.max_tokens, prompt)


async def tokenized_ids(
    app: App, model: ServedModel, asked: GenerationRequest, tokens: list[int]
) -> TokenizedPrompt:
    """The prompt that tokens are: of them, what is kept.

    Raises:
        InvalidRequest: one is not in the vocabulary, or nothing would be kept.
    """
    if max(tokens, default=0) >= model.vocab_size:
        raise InvalidRequest("prompt: a token is outside the vocabulary", "prompt")
    is_kept = asked.owner.session_id is not None
    text = await app.texts.decode_all(model.tokenizer, tokens) if is_kept else ""
    prompt = await take_tokens(app, model, asked.owner, tokens, text)
    return await cut(model, asked.owner, asked.truncation, asked.max_tokens, prompt)


async def cut(
    model: ServedModel,
    owner: Owner,
    truncation: Truncation | None,
    max_tokens: int | None,
    prompt: TokenizedPrompt,
) -> TokenizedPrompt:
    """A prompt shortened to what its truncation leaves of it.

    Args:
        max_tokens: of the reply, as the request gives it.

    Raises:
        InvalidRequest: nothing would be left.
    """
    left = cut_tokens(model, truncation, max_tokens, prompt.tokens)
    if left is prompt.tokens:
        return prompt
    num_turns, claim = prompt.num_turns, prompt.claim
    return await given_tokens(model, owner, left, text="", num_turns=num_turns, claim=claim)


async def _tokenize(
    app: App, model: ServedModel, owner: Owner, text: str, *, special: bool, is_cut: bool
) -> TokenizedPrompt:
    """Tokens of a text: a session's stored ones and what is new, or all of them.

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
    stored = stored_prompt(record, model, owner, text) if record is not None else None
    telemetry.SESSIONS_REUSED.labels("false" if stored is None else "true").inc()
    known: list[BlockKey] = []
    num_history = 0
    if stored is None:
        tokens = await encode(text, special=special)
    else:
        tokens, known, rest = stored
        num_known = len(tokens)
        tokens += await encode(rest, special=False) if rest else []
        num_history = num_reusable(session, model, owner, num_known, len(tokens))
        known = known if num_history else []
    keys = await keys_of(root_of(model, owner, len(tokens)), known, tokens, model.card.block_tokens)
    return TokenizedPrompt(
        text=text,
        tokens=tokens,
        keys=keys,
        num_turns=num_turns,
        claim=claim,
        kv_at=kv_at_hosts(session, model, len(tokens)),
        num_history=num_history,
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
        kv_at=kv_at_hosts(session, model, len(tokens)),
        num_history=num_reusable(session, model, owner, len(tokens), len(tokens)),
    )


async def given_tokens(
    model: ServedModel,
    owner: Owner,
    tokens: list[int],
    *,
    text: str,
    num_turns: int = 0,
    claim: OpenSession | None = None,
) -> TokenizedPrompt:
    """A prompt of which the tokens are known.

    Args:
        text: what the session's next turn is to extend. An empty one is never extended: the next
            turn is tokenized from its beginning.
    """
    if owner.session_id is None:
        return TokenizedPrompt(text="", tokens=tokens, keys=[])
    keys = await keys_of(root_of(model, owner, len(tokens)), [], tokens, model.card.block_tokens)
    return TokenizedPrompt(text=text, tokens=tokens, keys=keys, num_turns=num_turns, claim=claim)


async def _claimed(
    app: App, tenant: TenantId, session_id: SessionId
) -> tuple[OpenSession, KnownSession]:
    """The request's claim, made before the session is looked up, and what is known of that."""
    claim = app.claims.make(tenant, session_id)
    known = await app.sessions.get(tenant, session_id)
    claim.epoch = known.epoch
    return claim, known
