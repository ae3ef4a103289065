"""From a body and its prompts to what is to be generated: what chat and completions share."""

from services.frontend.api.bodies import Generate, agent_of, session_of, stop_strings
from services.frontend.api.kv_hints import count_ignored, wishes_of
from services.frontend.api.text.generation import Generation, Plan
from services.frontend.app import App
from services.frontend.core.choice import TextRules
from services.frontend.core.forms import Held
from services.frontend.core.kv_expiry import kv_expiry_s
from services.frontend.core.quotas import priority_within
from services.frontend.models import ServedModel
from services.frontend.prepare.sampling import max_new_tokens, sampling_params
from services.frontend.prepare.tokenize import Owner, TokenizedPrompt, fitting, given_tokens
from services.frontend.request import Origin
from shared.errors import InvalidRequest
from shared.ids import ModelId

ROOM_PARTS = 8  # of a context, one of which is for a reply of any length


def owner_of(body: Generate, origin: Origin) -> Owner:
    """Whose turn it is."""
    return Owner(
        tenant=origin.tenant,
        session_id=session_of(body, origin),
        cache_salt=body.cache_salt or "",
    )


def text_rules(body: Generate, *, discard: bool = False) -> TextRules:
    """How the reply becomes text.

    Raises:
        InvalidRequest: wrong stop strings.
    """
    return TextRules(
        stop=stop_strings(body.stop),
        keep_stop=bool(body.include_stop_str_in_output),
        stop_token_ids=body.stop_token_ids or (),
        min_tokens=body.min_tokens or 0,
        discard=discard,
    )


async def generation_of(
    app: App,
    model: ServedModel,
    body: Generate,
    origin: Origin,
    prompts: list[TokenizedPrompt],
    rules: TextRules,
    *,
    held: Held,
    asked: int | None,
    default: int,
    show_special: bool = False,
) -> Generation:
    """What is to be generated.

    Args:
        held: what the reply is held to.
        asked: length of the reply that the request wants, if it names one; 0: none.
        default: length if it does not, 0: as long as fits.
        show_special: somebody reads special tokens in it.

    Raises:
        InvalidRequest: it does not fit the model, or a token id is outside the vocabulary.
    """
    owner, wanted = owner_of(body, origin), asked != 0
    wishes = wishes_of(body.kv_hints, owner.session_id)
    count_ignored(body.kv_hints, wishes)
    num_new = _num_new(model, asked)
    prompts = [await cut(model, owner, body, prompt, num_new) for prompt in prompts]
    max_model_len = model.card.max_model_len
    lengths = [
        max_new_tokens(
            asked,
            default,
            num_prompt=len(prompt.tokens),
            max_model_len=max_model_len,
            wanted=wanted,
        )
        for prompt in prompts
    ]
    vocab_size, defaults = model.vocab_size, model.card.sampling
    plan = Plan(
        model=model,
        owner=owner,
        prompts=prompts,
        samplings=[
            sampling_params(body, max_tokens=n, vocab_size=vocab_size, defaults=defaults, held=held)
            for n in lengths
        ],
        n=body.n or 1,
        rules=rules,
        kv_expiry_s=kv_expiry_s(
            app.quotas.of(owner.tenant),
            body.kv_expiry_s,
            retained_s=max((wish.duration_s for wish in wishes if wish.is_own), default=0.0),
            is_released=any(wish.is_own and wish.lets_go for wish in wishes),
        ),
        tells_places=bool(body.return_cached_tokens_details),
        priority=priority_within(app.quotas.of(owner.tenant).priority, body.priority, default=0),
        show_special=show_special or body.skip_special_tokens is False,
        request_id=origin.request_id,
        slo_ttft_ms=origin.slo_ttft_ms,
        slo_tpot_ms=origin.slo_tpot_ms,
        agent=agent_of(body, origin) if owner.session_id is not None else None,
        wishes=wishes,
        place=origin.place,
        span=origin.span,
        asked_model=model.card.model_id if body.model is None else ModelId(body.model),
    )
    return Generation(app, plan)


def fitting_text(model: ServedModel, body: Generate, text: str, asked: int | None) -> str:
    """As much of a prompt's text as can matter: see `cut` and `fitting`.

    Raises:
        InvalidRequest: it is too long, or nothing would be left.
    """
    keep = _num_kept(model, body, _num_new(model, asked))
    return fitting(model, text, keep=keep, keep_start=body.truncation_side == "right")


async def cut(
    model: ServedModel, owner: Owner, body: Generate, prompt: TokenizedPrompt, num_new: int
) -> TokenizedPrompt:
    """A prompt shortened to what `truncate_prompt_tokens` leaves of it: its end, as a rule.

    Args:
        num_new: tokens for which -1 leaves room.

    Raises:
        InvalidRequest: nothing would be left.
    """
    keep = _num_kept(model, body, num_new)
    tokens = prompt.tokens
    if keep is None or len(tokens) <= keep:
        return prompt
    left = tokens[:keep] if body.truncation_side == "right" else tokens[-keep:]
    num_turns, claim = prompt.num_turns, prompt.claim
    return await given_tokens(model, owner, left, text="", num_turns=num_turns, claim=claim)


def _num_new(model: ServedModel, asked: int | None) -> int:
    """Tokens that a prompt leaves room for, if it is cut so that it does: those that are asked
    for, or else a part of all."""
    return max(model.card.max_model_len // ROOM_PARTS, 1) if asked is None else max(asked, 1)


def _num_kept(model: ServedModel, body: Generate, num_new: int) -> int | None:
    """Tokens that are kept of a prompt; None: all."""
    keep = body.truncate_prompt_tokens
    if keep is None:
        return None
    if keep == -1:
        keep = model.card.max_model_len - num_new
    if keep < 1:
        raise InvalidRequest(
            f"truncate_prompt_tokens: {body.truncate_prompt_tokens} leaves nothing of the prompt",
            "truncate_prompt_tokens",
        )
    return keep
