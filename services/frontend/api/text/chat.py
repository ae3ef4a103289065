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
from services.frontend.api.text.held import held_to
from services.frontend.api.text.logprobs import chat_entry
from services.frontend.api.text.messages import rendered
from services.frontend.api.text.planning import fitting_text, generation_of, owner_of, text_rules
from services.frontend.api.text.prompts import tokenize_text
from services.frontend.api.text.tools import CallsOfChoice, Tools, tools_of
from services.frontend.api.text.writing import ChoicesWriter
from services.frontend.app import App
from services.frontend.core.choice import Piece, PublicFinish
from services.frontend.request import Origin

router = APIRouter(tags=["text"])


@router.post(
    "/v1/chat/completions",
    responses=streams("`chat.completion.chunk`, then `[DONE]`", CHAT),
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
    generation, tools = await generation_of_chat(app, body, origin)
    return ChatWriter(generation, body, tools)


async def generation_of_chat(
    app: App, body: ChatBody, origin: Origin
) -> tuple[Generation, Tools | None]:
    """What is to be generated, and the tools that it may call.

    Raises:
        SymphonyError: it cannot be served as it is.
    """
    app.quotas.check_turns(origin.tenant)
    check_options(body)
    rules = text_rules(body)
    model = await app.adapters.model(origin.tenant, body.model, body.adapter_id)
    asked = body.max_completion_tokens or body.max_tokens
    tools = tools_of(body, model.tokenizer, app.config.tool_parser)
    grammar = await held_to(app, body, model.tokenizer, tools)
    text = await rendered(app.texts, model.tokenizer, body)
    text = fitting_text(model, body, text, asked)
    prompt = await tokenize_text(
        app, model, owner_of(body, origin), text,
        special=bool(body.add_special_tokens),
        is_cut=body.truncate_prompt_tokens is not None,
    )  # fmt: skip
    generation = await generation_of(
        app, model, body, origin, [prompt], rules,
        grammar=grammar,
        asked=asked,
        default=app.config.max_tokens_default,
        show_special=tools is not None and model.tokenizer.is_special(tools.family.marker),
    )  # fmt: skip
    return generation, tools


class ChatWriter(ChoicesWriter):
    """A chat's pieces as OpenAI writes them.

    Args:
        tools: that the reply may call; None: all of it is text.
    """

    def __init__(self, generation: Generation, body: ChatBody, tools: Tools | None = None) -> None:
        super().__init__(generation, body, prefix="chatcmpl", kind="chat.completion")
        self._wants_logprobs = bool(body.logprobs)
        self._entry = partial(
            chat_entry, generation.plan.model.tokenizer, self._name, num_top=body.top_logprobs or 0
        )
        self._entries: list[list[dict[str, Any]]] = [[] for _ in generation.choices]
        self._has_role = [False] * len(generation.choices)
        self._calls = [CallsOfChoice(tools) for _ in generation.choices] if tools else []

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
        deltas = self._deltas(piece)
        if not deltas and (tokens or logprobs != b"null"):
            deltas = [b'{"content":""}']
        for delta in deltas:  # what belongs to tokens comes with the first of what they say
            more = b',"token_ids":%b' % orjson.dumps(tokens) if tokens else b""
            chunks.append(self._chunk(_choice(piece.index, delta, logprobs, more=more)))
            tokens, logprobs = [], b"null"
        if (reason := self._finish(piece.index, piece.finish)) is not None:
            finish = b'"%b"' % reason.encode()
            chunks.append(self._chunk(_choice(piece.index, b"{}", finish=finish)))
        return chunks

    def add(self, piece: Piece) -> None:
        super().add(piece)
        if self._calls:
            self._read(piece)
        else:
            self._texts[piece.index].append(piece.text)
        if self._wants_logprobs:
            self._entries[piece.index] += [self._entry(entry) for entry, _ in piece.logprobs]

    def whole(self) -> bytes:
        choices = []
        for index, texts in enumerate(self._texts):
            message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
            message["refusal"] = None
            if self._calls:
                message |= self._calls[index].message()
            logprobs = {"content": self._entries[index]} if self._wants_logprobs else None
            choice = self._whole_choice(index, logprobs, message=message)
            choice["finish_reason"] = self._finish(index, self.generation.choices[index].finish)
            choices.append(choice)
        if not self._wants_token_ids:
            return self._whole(choices)
        return self._whole(choices, prompt_token_ids=self.generation.prompt_of(0).tokens)

    def _deltas(self, piece: Piece) -> list[bytes]:
        """What a piece says, as members of its choice's message."""
        if self._calls:
            return self._read(piece)
        return [b'{"content":%b}' % orjson.dumps(piece.text)] if piece.text else []

    def _read(self, piece: Piece) -> list[bytes]:
        calls = self._calls[piece.index]
        deltas = calls.read(piece.text, is_over=piece.finish is not None)
        if not piece.index:
            self.generation.tools = calls.told_names
        return deltas

    def _finish(self, index: int, finish: PublicFinish | None) -> str | None:
        if finish != "stop" or not self._calls:
            return finish
        calls = self._calls[index]
        return "tool_calls" if calls.names and not calls.is_cut else finish

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
