"""``POST /v1/chat/completions``."""

from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies import (
    ChatBody,
    chat_messages,
    parse,
    refuse_unsupported,
    session_of,
    stop_strings,
)
from services.frontend.api.delivery import respond
from services.frontend.api.documents import TURN_HEADERS, streams, takes
from services.frontend.api.generation import Generation, Plan
from services.frontend.api.logprobs import chat_entry
from services.frontend.api.prompts import Owner, tokenize_text
from services.frontend.api.sampling import max_new_tokens, sampling_params
from services.frontend.app import App, app_of
from services.frontend.core.choice import Piece, TextRules
from services.frontend.request import Origin, origin_of, read_body
from shared.ids import new_id

router = APIRouter(tags=["text"])


@router.post(
    "/v1/chat/completions",
    responses=streams("chat.completion.chunk"),
    openapi_extra=takes(ChatBody, *TURN_HEADERS),
)
async def chat_completions(request: Request) -> Response:
    """The next message of a chat."""
    body = parse(ChatBody, await read_body(request))
    writer = await prepare_chat(app_of(request), body, origin_of(request))
    return await respond(request, writer, stream=bool(body.stream))


async def prepare_chat(app: App, body: ChatBody, origin: Origin) -> "ChatWriter":
    """Check and tokenize a chat.

    Raises:
        SymphonyError: it cannot be served as it is.
    """
    refuse_unsupported(body)
    rules = TextRules(
        stop=stop_strings(body.stop),
        keep_stop=bool(body.include_stop_str_in_output),
        stop_token_ids=body.stop_token_ids or (),
        min_tokens=body.min_tokens or 0,
    )
    model = app.models.get(body.model)
    owner = Owner(
        tenant=origin.tenant,
        session_id=session_of(body, origin),
        cache_salt=body.cache_salt or "",
    )
    options = {
        **(body.chat_template_kwargs or {}),
        "add_generation_prompt": body.add_generation_prompt is not False,
    }
    text = model.tokenizer.render(chat_messages(body.messages), options)
    prompt = await tokenize_text(app, model, owner, text, special=bool(body.add_special_tokens))
    max_tokens = max_new_tokens(
        body.max_completion_tokens or body.max_tokens,
        app.config.max_tokens_default,
        num_prompt=len(prompt.tokens),
        max_model_len=model.card.max_model_len,
    )
    sampling = sampling_params(body, max_tokens=max_tokens, vocab_size=model.tokenizer.vocab_size)
    plan = Plan(
        model=model,
        owner=owner,
        prompts=[prompt],
        samplings=[sampling],
        n=body.n or 1,
        rules=rules,
        priority=body.priority or 0,
        show_special=body.skip_special_tokens is False,
        request_id=origin.request_id,
        slo_ttft_ms=origin.slo_ttft_ms,
    )
    return ChatWriter(Generation(app, plan), body, int(app.clock.wall_ns() // 1_000_000_000))


class ChatWriter:
    """A chat's pieces as OpenAI writes them. Chunks are put together from prepared parts: only
    the text itself is serialized for each.
    """

    def __init__(self, generation: Generation, body: ChatBody, created: int) -> None:
        self.generation = generation
        self._id = new_id("chatcmpl")
        self._created = created
        self._model = body.model
        self._wants_logprobs = bool(body.logprobs)
        self._entry = partial(
            chat_entry, generation.plan.model.tokenizer, num_top=body.top_logprobs or 0
        )
        options = body.stream_options
        self._wants_usage = bool(options is not None and options.include_usage)
        num = len(generation.choices)
        self._texts: list[list[str]] = [[] for _ in range(num)]
        self._entries: list[list[dict[str, Any]]] = [[] for _ in range(num)]
        self._has_role = [False] * num
        self._head = (
            b'{"id":"%b","object":"chat.completion.chunk","created":%d,"model":%b,"choices":['
            % (self._id.encode(), created, orjson.dumps(self._model))
        )
        self._tail = b'}],"usage":null}' if self._wants_usage else b"}]}"

    def chunks(self, piece: Piece) -> list[bytes]:
        chunks = []
        if not self._has_role[piece.index]:
            self._has_role[piece.index] = True
            chunks.append(self._chunk(piece.index, b'{"role":"assistant","content":""}'))
        logprobs = b"null"
        if self._wants_logprobs and piece.logprobs:
            logprobs = orjson.dumps({"content": [self._entry(e) for e, _ in piece.logprobs]})
        if piece.text or logprobs != b"null":
            delta = b'{"content":%b}' % orjson.dumps(piece.text)
            chunks.append(self._chunk(piece.index, delta, logprobs))
        if piece.finish is not None:
            chunks.append(self._chunk(piece.index, b"{}", finish=b'"%b"' % piece.finish.encode()))
        return chunks

    def usage_chunk(self) -> bytes | None:
        if not self._wants_usage:
            return None
        return self._head + b'],"usage":%b}' % orjson.dumps(self.generation.usage())

    def add(self, piece: Piece) -> None:
        self._texts[piece.index].append(piece.text)
        if self._wants_logprobs:
            self._entries[piece.index] += [self._entry(entry) for entry, _ in piece.logprobs]

    def whole(self) -> bytes:
        return orjson.dumps(
            {
                "id": self._id,
                "object": "chat.completion",
                "created": self._created,
                "model": self._model,
                "choices": [self._choice(index) for index in range(len(self._texts))],
                "usage": self.generation.usage(),
            }
        )

    def _choice(self, index: int) -> dict[str, Any]:
        content = "".join(self._texts[index])
        return {
            "index": index,
            "message": {"role": "assistant", "content": content, "refusal": None},
            "logprobs": {"content": self._entries[index]} if self._wants_logprobs else None,
            "finish_reason": self.generation.choices[index].finish,
        }

    def _chunk(
        self, index: int, delta: bytes, logprobs: bytes = b"null", finish: bytes = b"null"
    ) -> bytes:
        return b'%b{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b%b' % (
            self._head, index, delta, logprobs, finish, self._tail,
        )  # fmt: skip
