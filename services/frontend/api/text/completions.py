"""``POST /v1/completions``."""

from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies.documents import TURN_HEADERS, streams, takes
from services.frontend.api.bodies.schemas import COMPLETION
from services.frontend.api.bodies.text import CompletionBody
from services.frontend.api.text.delivery import respond
from services.frontend.api.text.generation import Generation
from services.frontend.api.text.logprobs import completion_block
from services.frontend.api.text.requests import PROMPT_WORDS, completion_request, errors_named
from services.frontend.api.text.writing import AnswerFormat, ChoicesWriter, answer_format
from services.frontend.app import App
from services.frontend.core.replies.choice import Piece
from services.frontend.http.request import Origin
from services.frontend.prepare.pipeline import prepare_completion
from shared.wire.messages import TokenLogprobs

router = APIRouter(tags=["text"])


@router.post(
    "/v1/completions",
    responses=streams("`text_completion`, then `[DONE]`", COMPLETION),
    openapi_extra=takes(CompletionBody, *TURN_HEADERS),
)
async def completions(request: Request) -> Response:
    """What follows a prompt."""
    return await respond(request, CompletionBody, open_completion)


async def open_completion(app: App, body: CompletionBody, origin: Origin) -> "CompletionWriter":
    """Check and tokenize a completion.

    Raises:
        SymphonyError: it cannot be served as it is.
    """
    request, form = await completion_request(body, origin), answer_format(body, body.logprobs)
    with errors_named(PROMPT_WORDS):
        prepared = await prepare_completion(app, request)
    return CompletionWriter(Generation(app, prepared.plan), form, prepared.echoes)


class CompletionWriter(ChoicesWriter):
    """A completion's pieces as OpenAI writes them.

    Args:
        echoes: each prompt's text and where its tokens start in it, if they are to be shown.
    """

    def __init__(
        self, generation: Generation, form: AnswerFormat, echoes: list[tuple[str, list[int]]]
    ) -> None:
        super().__init__(generation, form, prefix="cmpl", kind="text_completion")
        self._echoes = echoes
        num = len(generation.choices)
        self._entries: list[list[tuple[TokenLogprobs, int]]] = [[] for _ in range(num)]
        self._has_begun = [False] * num
        self._prompt_chars = [0] * num

    def num_entries(self, piece: Piece | None) -> int:
        if piece is None:
            num_entries = sum(map(len, self._entries))
            return num_entries + self._num_prompt_entries(range(len(self._entries)))
        num_echoed = len(self._prompt_entries(piece.index)) if self._is_echo_due(piece) else 0
        return num_echoed + len(piece.logprobs)

    def chunks(self, piece: Piece) -> list[bytes]:
        self._num_sent += len(piece.tokens)
        shows_prompt = self._form.has_token_ids and not self._has_begun[piece.index]
        text, entries = self._with_echo(piece)
        tokens = piece.tokens if self._form.has_token_ids else ()
        if not (text or entries or tokens or shows_prompt or piece.finish is not None):
            return []
        choice: dict[str, Any] = {
            "index": piece.index,
            "text": text,
            "logprobs": self._logprobs(entries),
            "finish_reason": piece.finish,
        }
        if self._form.has_token_ids:
            choice["token_ids"] = list(tokens)
            if shows_prompt:
                choice["prompt_token_ids"] = self.generation.plan.prompt_of(piece.index).tokens
        return [self._chunk(orjson.dumps(choice))]

    def add(self, piece: Piece) -> None:
        super().add(piece)
        text, entries = self._with_echo(piece)
        self._texts[piece.index].append(text)
        self._entries[piece.index] += entries

    def whole(self) -> bytes:
        choices = []
        for index, texts in enumerate(self._texts):
            logprobs = self._logprobs(self._entries[index])
            choice = self._whole_choice(index, logprobs, text="".join(texts))
            choice |= self._prompt_logprobs(index)
            if self._form.has_token_ids:
                choice["prompt_token_ids"] = self.generation.plan.prompt_of(index).tokens
            choices.append(choice)
        return self._whole(choices)

    def _logprobs(self, entries: list[tuple[TokenLogprobs, int]]) -> dict[str, Any] | None:
        if self._form.num_top is None:
            return None
        return completion_block(self._name, entries, self._form.num_top)

    def _with_echo(self, piece: Piece) -> tuple[str, list[tuple[TokenLogprobs, int]]]:
        """The piece's text and log-probabilities, behind the prompt's if this is the first."""
        index = piece.index
        text = ""
        entries: list[tuple[TokenLogprobs, int]] = []
        if self._is_echo_due(piece):
            text, entries = self._prompt(index)
            self._prompt_chars[index] = len(text)
        self._has_begun[index] = True
        shift = self._prompt_chars[index]
        return text + piece.text, entries + [(e, shift + start) for e, start in piece.logprobs]

    def _prompt(self, index: int) -> tuple[str, list[tuple[TokenLogprobs, int]]]:
        text, starts = self._echoes[index // self.generation.plan.request.n]
        return text, list(zip(self._prompt_entries(index), starts, strict=False))

    def _is_echo_due(self, piece: Piece) -> bool:
        return bool(self._echoes) and not self._has_begun[piece.index]
