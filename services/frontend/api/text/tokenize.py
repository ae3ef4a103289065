"""``POST /tokenize`` and ``POST /detokenize``."""

import asyncio

from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies.base import token_list
from services.frontend.api.bodies.documents import takes
from services.frontend.api.bodies.fields import parse
from services.frontend.api.bodies.schemas import DETOKENIZED, TOKENIZED, answers
from services.frontend.api.bodies.text import DetokenizeBody, TokenizeBody
from services.frontend.api.text.requests import PROMPT_WORDS, conversation_of, errors_named
from services.frontend.app import App, app_of
from services.frontend.core.limits.capacity import HeldCapacity
from services.frontend.http.answers import Json
from services.frontend.http.request import caller_of, read_body
from services.frontend.prepare.template import rendered
from shared.errors import InvalidRequest
from shared.ids import TenantId

NAMES_AT_ONCE = 16_384  # about 5 ms

router = APIRouter(tags=["tokens"])


@router.post("/tokenize", openapi_extra=takes(TokenizeBody), responses=answers(TOKENIZED))
async def tokenize(request: Request) -> Response:
    """Tokens of a text, or of a chat as the model's template writes it."""
    app = app_of(request)
    with HeldCapacity(app.capacity_of(caller_of(request).tenant)) as held:
        body = parse(TokenizeBody, await read_body(request, app.config, held))
        return await _tokenized(app, body, caller_of(request).tenant)


async def _tokenized(app: App, body: TokenizeBody, tenant: TenantId) -> Response:
    model = await app.adapters.model(tenant, body.model)
    tokenizer = model.tokenizer
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either prompt or messages", "prompt")
    if body.messages is not None:
        text = await rendered(app.texts, tokenizer, conversation_of(body))
        special = bool(body.add_special_tokens)
    else:
        text = body.prompt or ""
        special = body.add_special_tokens is not False
    tokens_max = app.config.body_values_max  # an answer is as large as a body may be
    with errors_named(PROMPT_WORDS if body.messages is None else {}):
        tokens = await app.texts.encode(tokenizer, text, special=special, tokens_max=tokens_max)
    names: list[str] | None = [] if body.return_token_strs else None
    if names is not None:
        for start in range(0, len(tokens), NAMES_AT_ONCE):
            names += map(tokenizer.token_name, tokens[start : start + NAMES_AT_ONCE])
            await asyncio.sleep(0)
    return Json(
        {
            "count": len(tokens),
            "max_model_len": model.card.max_model_len,
            "tokens": tokens,
            "token_strs": names,
        }
    )


@router.post("/detokenize", openapi_extra=takes(DetokenizeBody), responses=answers(DETOKENIZED))
async def detokenize(request: Request) -> Response:
    """Text of tokens, special ones included."""
    app = app_of(request)
    with HeldCapacity(app.capacity_of(caller_of(request).tenant)) as held:
        body = parse(DetokenizeBody, await read_body(request, app.config, held))
        model = await app.adapters.model(caller_of(request).tenant, body.model)
        vocab_size = model.tokenizer.vocab_size
        tokens = token_list(body.tokens)
        if tokens is None or max(tokens, default=0) >= vocab_size:
            raise InvalidRequest(f"tokens: give a list of numbers below {vocab_size}", "tokens")
        return Json({"prompt": await app.texts.decode_all(model.tokenizer, tokens)})
