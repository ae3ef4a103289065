"""``POST /v1/chat/completions``."""

from collections.abc import Iterator
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
from services.frontend.api.text.tools import Call, CallsOfChoice, tools_of, written
from services.frontend.api.text.writing import ChoicesWriter
from services.frontend.app import App
from services.frontend.core.choice import Piece, PublicFinish
from services.frontend.core.thoughts import Thought
from services.frontend.core.tools import Argued, Said
from services.frontend.prepare.grammar import held_to
from services.frontend.prepare.messages import rendered
from services.frontend.prepare.plan import fitting_text, generation_of, owner_of, text_rules
from services.frontend.prepare.reading import PLAIN, Reading, ReplyOfChoice, Told, reading_of, tell
from services.frontend.prepare.tokenize import tokenize_text
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
    generation, reading = await generation_of_chat(app, body, origin)
    return ChatWriter(generation, body, reading)


async def generation_of_chat(
    app: App, body: ChatBody, origin: Origin
) -> tuple[Generation, Reading]:
    """What is to be generated, and how it is read.

    Raises:
        SymphonyError: it cannot be served as it is.
    """
    app.quotas.check_turns(origin.tenant)
    check_options(body)
    rules = text_rules(body)
    model = await app.adapters.model(origin.tenant, body.model, body.adapter_id)
    asked = body.max_completion_tokens or body.max_tokens
    tools = tools_of(body, model.tokenizer, app.config.tool_parser)
    text = await rendered(app.texts, model.tokenizer, body)
    reading = reading_of(body, model.tokenizer, app.config, tools, text)
    held = await held_to(app, origin.tenant, body, model.tokenizer, reading)
    text = fitting_text(model, body, text, asked)
    prompt = await tokenize_text(
        app, model, owner_of(body, origin), text,
        special=bool(body.add_special_tokens),
        is_cut=body.truncate_prompt_tokens is not None,
    )  # fmt: skip
    generation = await generation_of(
        app, model, body, origin, [prompt], rules,
        held=held,
        asked=asked,
        default=app.config.max_tokens_default,
        show_special=any(map(model.tokenizer.is_special, reading.marks())),
    )  # fmt: skip
    return generation, reading


class ChatWriter(ChoicesWriter):
    """A chat's pieces as OpenAI writes them.

    Args:
        reading: how the reply is read.
    """

    def __init__(self, generation: Generation, body: ChatBody, reading: Reading = PLAIN) -> None:
        super().__init__(generation, body, prefix="chatcmpl", kind="chat.completion")
        self._wants_logprobs = bool(body.logprobs)
        self._entry = partial(
            chat_entry, generation.plan.model.tokenizer, self._name, num_top=body.top_logprobs or 0
        )
        self._entries: list[list[dict[str, Any]]] = [[] for _ in generation.choices]
        self._has_role = [False] * len(generation.choices)
        self._replies: list[ReplyOfChoice] = []
        self._thoughts: list[list[str]] = [[] for _ in generation.choices]
        self._shows_thoughts = reading.tells_thoughts
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
        self._num_told += len(piece.tokens)
        logprobs = b"null"
        if self._wants_logprobs and piece.logprobs:
            logprobs = orjson.dumps({"content": [self._entry(e) for e, _ in piece.logprobs]})
        tokens = list(piece.tokens) if self._wants_token_ids else []
        deltas = [self._delta(told, piece.index) for told in self._told(piece)]
        reason = self._finish(piece.index, piece.finish)
        if not deltas and (tokens or logprobs != b"null" or reason is not None):
            deltas = [b'{"content":""}' if tokens or logprobs != b"null" else b"{}"]
        for left, delta in zip(reversed(range(len(deltas))), deltas, strict=True):
            # What belongs to tokens comes with the first of what they say, the end with the last.
            more = b',"token_ids":%b' % orjson.dumps(tokens) if tokens else b""
            finish = b"null" if left or reason is None else b'"%b"' % reason.encode()
            chunks.append(self._chunk(_choice(piece.index, delta, logprobs, finish, more)))
            tokens, logprobs = [], b"null"
        return chunks

    def add(self, piece: Piece) -> None:
        super().add(piece)
        for told in self._told(piece):
            match told:
                case Thought(thought):
                    self._thoughts[piece.index].append(thought)
                case Said(said):
                    self._texts[piece.index].append(said)
        if self._wants_logprobs:
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
            logprobs = {"content": self._entries[index]} if self._wants_logprobs else None
            choice = self._whole_choice(index, logprobs, message=message)
            choice["finish_reason"] = self._finish(index, self.generation.choices[index].finish)
            choices.append(choice)
        more = self._prompt_logprobs(0)
        if self._wants_token_ids:
            more["prompt_token_ids"] = self.generation.prompt_of(0).tokens
        return self._whole(choices, **more)

    def _told(self, piece: Piece) -> Iterator[Told]:
        """What a piece tells."""
        if not self._replies:
            if piece.text:
                yield Said(piece.text)
            return
        yield from self._replies[piece.index].take(piece)
        tell(self.generation, self._replies)

    def _delta(self, told: Told, index: int) -> bytes:
        """As members of its choice's message."""
        match told:
            case Thought(thought):
                return b'{"reasoning_content":%b}' % orjson.dumps(thought)
            case Said(said):
                return b'{"content":%b}' % orjson.dumps(said)
            case Call():
                call = written(told)
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
