"""``POST /v1/chat/completions``."""

from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies import ChatBody, check_options, parse
from services.frontend.api.delivery import respond
from services.frontend.api.documents import TURN_HEADERS, streams, takes
from services.frontend.api.generation import Generation
from services.frontend.api.logprobs import chat_entry
from services.frontend.api.messages import chat_messages, template_options
from services.frontend.api.planning import fitting_text, generation_of, owner_of, text_rules
from services.frontend.api.prompts import tokenize_text
from services.frontend.api.schemas import CHAT
from services.frontend.api.writing import Frame
from services.frontend.app import App, app_of
from services.frontend.core.choice import Piece
from services.frontend.core.room import FREE_BODY_BYTES, Hold
from services.frontend.request import Origin, caller_of, origin_of, read_body

router = APIRouter(tags=["text"])


@router.post(
    "/v1/chat/completions",
    responses=streams("chat.completion.chunk", CHAT),
    openapi_extra=takes(ChatBody, *TURN_HEADERS),
)
async def chat_completions(request: Request) -> Response:
    """The next message of a chat."""
    app = app_of(request)
    with Hold(app.room_of(caller_of(request).tenant), FREE_BODY_BYTES) as hold:
        body = parse(ChatBody, await read_body(request, hold.grow_to))
        writer = await prepare_chat(app, body, origin_of(request))
        writer.generation.keep(hold)
        return await respond(request, writer, stream=bool(body.stream))


async def prepare_chat(app: App, body: ChatBody, origin: Origin) -> "ChatWriter":
    """Check and tokenize a chat.

    Raises:
        SymphonyError: it cannot be served as it is.
    """
    app.quotas.check_turns(origin.tenant)
    check_options(body)
    rules = text_rules(body)
    model = app.models.get(body.model)
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
    return ChatWriter(generation, body, int(app.clock.wall_ns() // 1_000_000_000))


class ChatWriter:
    """A chat's pieces as OpenAI writes them."""

    def __init__(self, generation: Generation, body: ChatBody, created: int) -> None:
        self.generation = generation
        self._frame = Frame(generation, body, created, prefix="chatcmpl", kind="chat.completion")
        self._wants_logprobs = bool(body.logprobs)
        self._entry = partial(
            chat_entry,
            generation.plan.model.tokenizer,
            self._frame.name,
            num_top=body.top_logprobs or 0,
        )
        num = len(generation.choices)
        self._texts: list[list[str]] = [[] for _ in range(num)]
        self._entries: list[list[dict[str, Any]]] = [[] for _ in range(num)]
        self._has_role = [False] * num

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
        tokens = list(piece.tokens) if self._frame.wants_token_ids else []
        if piece.text or tokens or logprobs != b"null":
            delta = b'{"content":%b}' % orjson.dumps(piece.text)
            more = b',"token_ids":%b' % orjson.dumps(tokens) if tokens else b""
            chunks.append(self._frame.chunk(_choice(piece.index, delta, logprobs, more=more)))
        if piece.finish is not None:
            finish = b'"%b"' % piece.finish.encode()
            chunks.append(self._frame.chunk(_choice(piece.index, b"{}", finish=finish)))
        return chunks

    def usage_chunk(self) -> bytes | None:
        return self._frame.usage_chunk()

    def add(self, piece: Piece) -> None:
        self._frame.add(piece)
        self._texts[piece.index].append(piece.text)
        if self._wants_logprobs:
            self._entries[piece.index] += [self._entry(entry) for entry, _ in piece.logprobs]

    def whole(self) -> bytes:
        choices = [self._whole_choice(index) for index in range(len(self._texts))]
        if not self._frame.wants_token_ids:
            return self._frame.whole(choices)
        return self._frame.whole(choices, prompt_token_ids=self.generation.prompt_of(0).tokens)

    def _whole_choice(self, index: int) -> dict[str, Any]:
        content = "".join(self._texts[index])
        choice = {
            "index": index,
            "message": {"role": "assistant", "content": content, "refusal": None},
            "logprobs": {"content": self._entries[index]} if self._wants_logprobs else None,
            "finish_reason": self.generation.choices[index].finish,
        }
        if self._frame.wants_token_ids:
            choice["token_ids"] = self._frame.tokens[index]
        return choice

    def _role_chunk(self, index: int) -> bytes:
        more = b""
        if self._frame.wants_token_ids:
            tokens = self.generation.prompt_of(index).tokens
            more = b'"prompt_token_ids":%b,' % orjson.dumps(tokens)
        return self._frame.chunk(_choice(index, b'{"role":"assistant","content":""}'), more)


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
