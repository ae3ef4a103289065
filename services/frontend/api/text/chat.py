"""``POST /v1/chat/completions``."""

from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies import ChatBody, check_options
from services.frontend.api.documents import TURN_HEADERS, streams, takes
from services.frontend.api.schemas import CHAT
from services.frontend.api.text.delivery import respond
from services.frontend.api.text.generation import Generation
from services.frontend.api.text.logprobs import chat_entry
from services.frontend.api.text.messages import chat_messages, template_options
from services.frontend.api.text.planning import fitting_text, generation_of, owner_of, text_rules
from services.frontend.api.text.prompts import tokenize_text
from services.frontend.api.text.writing import Writer
from services.frontend.app import App
from services.frontend.core.choice import Piece
from services.frontend.request import Origin

router = APIRouter(tags=["text"])


@router.post(
    "/v1/chat/completions",
    responses=streams("chat.completion.chunk", CHAT),
    openapi_extra=takes(ChatBody, *TURN_HEADERS),
)
async def chat_completions(request: Request) -> Response:
    """The next message of a chat."""
    return await respond(request, ChatBody, prepare_chat)


async def prepare_chat(app: App, body: ChatBody, origin: Origin) -> "ChatWriter":
    """Check and tokenize a chat.

    Raises:
        SymphonyError: it cannot be served as it is.
    """
    app.quotas.check_turns(origin.tenant)
    check_options(body)
    rules = text_rules(body)
    model = await app.adapters.model(origin.tenant, body.model, body.adapter_id)
    asked = body.max_completion_tokens or body.max_tokens
    options = template_options(body, model.tokenizer.template_names)
    text = await app.texts.render(model.tokenizer, chat_messages(body.messages), options)
    text = fitting_text(model, body, text, asked)
    prompt = await tokenize_text(
        app, model, owner_of(body, origin), text,
        special=bool(body.add_special_tokens),
        is_cut=body.truncate_prompt_tokens is not None,
    )  # fmt: skip
    generation = await generation_of(
        app, model, body, origin, [prompt], rules,
        asked=asked,
        default=app.config.max_tokens_default,
    )  # fmt: skip
    return ChatWriter(generation, body)


class ChatWriter(Writer):
    """A chat's pieces as OpenAI writes them."""

    def __init__(self, generation: Generation, body: ChatBody) -> None:
        super().__init__(generation, body, prefix="chatcmpl", kind="chat.completion")
        self._wants_logprobs = bool(body.logprobs)
        self._entry = partial(
            chat_entry, generation.plan.model.tokenizer, self._name, num_top=body.top_logprobs or 0
        )
        self._entries: list[list[dict[str, Any]]] = [[] for _ in generation.choices]
        self._has_role = [False] * len(generation.choices)

    def num_entries(self, piece: Piece | None) -> int:
        return 0 if piece is None else len(piece.logprobs)  # the whole's are written as they come

    def chunks(self, piece: Piece) -> list[bytes]:
        chunks = []
        if not self._has_role[piece.index]:
            self._has_role[piece.index] = True
            chunks.append(self._role_chunk(piece.index))
        logprobs = b"null"
        if self._wants_logprobs and piece.logprobs:
            logprobs = orjson.dumps({"content": [self._entry(e) for e, _ in piece.logprobs]})
        tokens = list(piece.tokens) if self._wants_token_ids else []
        if piece.text or tokens or logprobs != b"null":
            delta = b'{"content":%b}' % orjson.dumps(piece.text)
            more = b',"token_ids":%b' % orjson.dumps(tokens) if tokens else b""
            chunks.append(self._chunk(_choice(piece.index, delta, logprobs, more=more)))
        if piece.finish is not None:
            finish = b'"%b"' % piece.finish.encode()
            chunks.append(self._chunk(_choice(piece.index, b"{}", finish=finish)))
        return chunks

    def add(self, piece: Piece) -> None:
        super().add(piece)
        self._texts[piece.index].append(piece.text)
        if self._wants_logprobs:
            self._entries[piece.index] += [self._entry(entry) for entry, _ in piece.logprobs]

    def whole(self) -> bytes:
        choices = []
        for index, texts in enumerate(self._texts):
            message = {"role": "assistant", "content": "".join(texts), "refusal": None}
            logprobs = {"content": self._entries[index]} if self._wants_logprobs else None
            choices.append(self._whole_choice(index, logprobs, message=message))
        if not self._wants_token_ids:
            return self._whole(choices)
        return self._whole(choices, prompt_token_ids=self.generation.prompt_of(0).tokens)

    def _role_chunk(self, index: int) -> bytes:
        more = b""
        if self._wants_token_ids:
            tokens = self.generation.prompt_of(index).tokens
            more = b'"prompt_token_ids":%b,' % orjson.dumps(tokens)
        return self._chunk(_choice(index, b'{"role":"assistant","content":""}'), more)


def _choice(
    index: int,
    delta: bytes,
    logprobs: bytes = b"null",
    finish: bytes = b"null",
    more: bytes = b"",
) -> bytes:
    return b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b%b}' % (
        index, delta, logprobs, finish, more,
    )  # fmt: skip
