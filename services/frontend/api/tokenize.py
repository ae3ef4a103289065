"""``POST /tokenize`` and ``POST /detokenize``."""

from fastapi import APIRouter, Request, Response

from services.frontend.api.answers import Json
from services.frontend.api.bodies import DetokenizeBody, TokenizeBody, parse
from services.frontend.api.documents import takes
from services.frontend.api.messages import chat_messages, template_options
from services.frontend.api.schemas import DETOKENIZED, TOKENIZED, answers
from services.frontend.app import App, app_of
from services.frontend.models import ServedModel
from services.frontend.request import read_body
from shared.errors import InvalidRequest, NoCapacity

router = APIRouter(tags=["tokens"])


@router.post("/tokenize", openapi_extra=takes(TokenizeBody), responses=answers(TOKENIZED))
async def tokenize(request: Request) -> Response:
    """Tokens of a text, or of a chat as the model's template writes it."""
    body = parse(TokenizeBody, await read_body(request))
    model = _model(app_of(request), body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either prompt or messages", "prompt")
    if body.messages is not None:
        text = model.tokenizer.render(chat_messages(body.messages), template_options(body))
        special = bool(body.add_special_tokens)
    else:
        text = body.prompt or ""
        special = body.add_special_tokens is not False
    tokens = await model.tokenizer.encode(text, special=special)
    names = None
    if body.return_token_strs:
        names = [model.tokenizer.token_name(token) for token in tokens]
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
    body = parse(DetokenizeBody, await read_body(request))
    model = _model(app_of(request), body.model)
    vocab_size = model.tokenizer.vocab_size
    if any(token >= vocab_size for token in body.tokens):
        raise InvalidRequest(f"tokens: one is outside the vocabulary of {vocab_size}", "tokens")
    return Json({"prompt": model.tokenizer.decode_all(body.tokens)})


def _model(app: App, model_id: str | None) -> ServedModel:
    """The named model, or the only one."""
    if model_id is not None:
        return app.models.get(model_id)
    models = app.models.all()
    if not models:
        raise NoCapacity("no model can be served now")
    if len(models) > 1:
        raise InvalidRequest("model: there are several, name one", "model")
    return models[0]
