"""``POST /v1/chat/completions``."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies.documents import TURN_HEADERS, streams, takes
from services.frontend.api.bodies.schemas import CHAT
from services.frontend.api.bodies.text import ChatBody
from services.frontend.api.text.delivery import respond
from services.frontend.api.text.generation import Generation
from services.frontend.api.text.logprobs import chat_entry
from services.frontend.api.text.replies import (
    Call,
    CallsOfChoice,
    ReplyOfChoice,
    ReplyPart,
    report,
    written,
)
from services.frontend.api.text.requests import chat_request
from services.frontend.api.text.writing import AnswerFormat, ChoicesWriter, answer_format
from services.frontend.app import App
from services.frontend.core.replies.choice import Piece, PublicFinish
from services.frontend.core.replies.thoughts import Thought
from services.frontend.core.tools import Argued, Said
from services.frontend.http.request import Origin
from services.frontend.prepare.pipeline import prepare_chat
from services.frontend.prepare.reading import PLAIN, Reading

router = APIRouter(tags=["text"])


@router.post(
    "/v1/chat/completions",
    responses=streams("`chat.completion.chunk`, then `[DONE]`", CHAT),
    openapi_extra=takes(ChatBody, *TURN_HEADERS),
)
async def chat_completions(request: Request) -> Response:
    """The next message of a chat."""
    return await respond(request, ChatBody, open_chat)


async def open_chat(app: App, body: ChatBody, origin: Origin) -> "ChatWriter":
    """Check and tokenize a chat.

    Raises:
        SymphonyError: it cannot be served as it is.
    """
    request = chat_request(body, origin)
    form = answer_format(body, request.generation.sampling.logprobs)
    prepared = await prepare_chat(app, request)
    return ChatWriter(Generation(app, prepared.plan), form, prepared.reading)


class ChatWriter(ChoicesWriter):
    """A chat's pieces as OpenAI writes them.

    Args:
        reading: how the reply is read.
    """

    def __init__(
        self, generation: Generation, form: AnswerFormat, reading: Reading = PLAIN
    ) -> None:
        super().__init__(generation, form, prefix="chatcmpl", kind="chat.completion")
        self._has_logprobs = form.num_top is not None
        self._entry = partial(
            chat_entry, generation.plan.model.tokenizer, self._name, num_top=form.num_top or 0
        )
        self._entries: list[list[dict[str, Any]]] = [[] for _ in generation.choices]
        self._has_role = [False] * len(generation.choices)
        self._replies: list[ReplyOfChoice] = []
        self._thoughts: list[list[str]] = [[] for _ in generation.choices]
        self._shows_thoughts = reading.hands_on_thoughts
        if not reading.is_plain:
            self._replies = [ReplyOfChoice(reading) for _ in generation.choices]

    def num_entries(self, piece: Piece | None) -> int:
        if piece is None:  # those of the reply are written as they come
            return self._num_prompt_entries([0])
        return len(piece.logprobs)

    def chunks(self, piece: Piece) -> list[bytes]:
        chunks = []
        if not self._has_role[piece.index]:
            self._has_role[piece.index] = True
            chunks.append(self._role_chunk(piece.index))
        self._num_sent += len(piece.tokens)
        logprobs = b"null"
        if self._has_logprobs and piece.logprobs:
            logprobs = orjson.dumps(_logprobs([self._entry(e) for e, _ in piece.logprobs]))
        tokens = list(piece.tokens) if self._form.has_token_ids else []
        deltas = [self._delta(part, piece.index) for part in self._parts(piece)]
        reason = self._finish(piece.index, piece.finish)
        if not deltas and (tokens or logprobs != b"null" or reason is not None):
            deltas = [b'{"content":""}' if tokens or logprobs != b"null" else b"{}"]
        for left, delta in zip(reversed(range(len(deltas))), deltas, strict=True):
            # What belongs to tokens comes with the first of their deltas, the end with the last.
            more = b',"token_ids":%b' % orjson.dumps(tokens) if tokens else b""
            finish = b"null" if left or reason is None else b'"%b"' % reason.encode()
            chunks.append(self._chunk(_choice(piece.index, delta, logprobs, finish, more)))
            tokens, logprobs = [], b"null"
        return chunks

    def add(self, piece: Piece) -> None:
        super().add(piece)
        for part in self._parts(piece):
            match part:
                case Thought(thought):
                    self._thoughts[piece.index].append(thought)
                case Said(said):
                    self._texts[piece.index].append(said)
        if self._has_logprobs:
            self._entries[piece.index] += [self._entry(entry) for entry, _ in piece.logprobs]

    def whole(self) -> bytes:
        choices = []
        for index, texts in enumerate(self._texts):
            text, calls = "".join(texts), self._calls(index)
            message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
            if self._shows_thoughts:
                message["reasoning_content"] = "".join(self._thoughts[index]) or None
            if calls is not None and calls.num:
                message |= {"content": text or None, "tool_calls": calls.written()}
            logprobs = _logprobs(self._entries[index]) if self._has_logprobs else None
            choice = self._whole_choice(index, logprobs, message=message)
            choice["finish_reason"] = self._finish(index, self.generation.choices[index].finish)
            choices.append(choice)
        more = self._prompt_logprobs(0)
        if self._form.has_token_ids:
            more["prompt_token_ids"] = self.generation.plan.prompt_of(0).tokens
        return self._whole(choices, **more)

    def _parts(self, piece: Piece) -> Iterator[ReplyPart]:
        """What a piece adds to its reply."""
        if not self._replies:
            if piece.text:
                yield Said(piece.text)
            return
        yield from self._replies[piece.index].take(piece)
        report(self.generation, self._replies)

    def _delta(self, part: ReplyPart, index: int) -> bytes:
        """As members of its choice's message."""
        match part:
            case Thought(thought):
                return b'{"reasoning_content":%b}' % orjson.dumps(thought)
            case Said(said):
                return b'{"content":%b}' % orjson.dumps(said)
            case Call():
                call = written(part)
            case Argued(more):
                call = {"function": {"arguments": more}}
        calls = self._calls(index)
        assert calls is not None
        return orjson.dumps({"tool_calls": [{"index": calls.num - 1, **call}]})

    def _finish(self, index: int, finish: PublicFinish | None) -> str | None:
        calls = self._calls(index)
        is_calling = finish == "stop" and calls is not None and calls.num > 0 and not calls.is_cut
        return "tool_calls" if is_calling else finish

    def _calls(self, index: int) -> CallsOfChoice | None:
        return self._replies[index].calls if self._replies else None

    def _role_chunk(self, index: int) -> bytes:
        more = b""
        if self._form.has_token_ids:
            tokens = self.generation.plan.prompt_of(index).tokens
            more = b'"prompt_token_ids":%b,' % orjson.dumps(tokens)
        return self._chunk(_choice(index, b'{"role":"assistant","content":""}'), more)


def _logprobs(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": entries, "refusal": None}


def _choice(
    index: int, delta: bytes, logprobs: bytes = b"null", finish: bytes = b"null", more: bytes = b""
) -> bytes:
    return b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b%b}' % (
        index, delta, logprobs, finish, more,
    )  # fmt: skip
