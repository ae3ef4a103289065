"""What writers of generated text share; and those of chat and completions: an answer's frame, usage
and token ids.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from services.frontend.api.bodies.text import Generate, StreamOptions
from services.frontend.api.text.generation import Generation
from services.frontend.api.text.logprobs import name_of, prompt_list
from services.frontend.core.replies.choice import Piece
from services.frontend.http.errors import error_body
from shared.errors import SymphonyError
from shared.ids import new_id
from shared.wire.messages import TokenLogprobs

DONE = b"[DONE]"
CHUNKS = {"chat.completion": "chat.completion.chunk", "text_completion": "text_completion"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """What a chat or a completion wants in its answer.

    Attributes:
        num_top: likeliest tokens beside each; None: no log-probabilities.
        num_prompt_top: the same of the prompt's tokens.
        token_names_are_ids: tokens are written as vLLM's ``token_id:123``.
    """

    is_streamed: bool
    has_usage: bool
    has_usage_always: bool
    has_token_ids: bool
    token_names_are_ids: bool
    num_top: int | None
    num_prompt_top: int | None


def answer_format(body: Generate, num_top: int | None) -> AnswerFormat:
    """By a body's fields.

    Args:
        num_top: as `AnswerFormat` has it; the two endpoints have different fields for it.
    """
    options = body.stream_options or StreamOptions()
    return AnswerFormat(
        is_streamed=bool(body.stream),
        has_usage=bool(options.include_usage),
        has_usage_always=bool(
            options.continuous_usage_stats and options.include_usage is not False
        ),
        has_token_ids=bool(body.return_token_ids),
        token_names_are_ids=bool(body.return_tokens_as_token_ids),
        num_top=num_top,
        num_prompt_top=body.prompt_logprobs,
    )


class Writer(ABC):
    """Turns a generation's pieces into an endpoint's JSON.

    Args:
        is_streamed: the answer is sent in chunks.
    """

    def __init__(self, generation: Generation, *, is_streamed: bool) -> None:
        self.generation = generation
        self.is_streamed = is_streamed

    @abstractmethod
    def num_entries(self, piece: Piece | None) -> int:
        """Tokens whose log-probabilities a piece, or (None) the whole answer, has to write."""

    @abstractmethod
    def chunks(self, piece: Piece) -> list[bytes]:
        """The streamed chunks that a piece makes, maybe none."""

    async def settle(self) -> None:
        """See to what has to be done before the answer's end is sent; it fails no answer."""
        return

    @abstractmethod
    def last_chunks(self) -> list[bytes]:
        """Those behind the last piece's."""

    def failure_chunk(self, error: SymphonyError) -> bytes:
        """In place of those, where it failed on the way."""
        return error_body(error)

    @abstractmethod
    def add(self, piece: Piece) -> None:
        """Keep a piece for `whole`."""

    @abstractmethod
    def whole(self) -> bytes:
        """The answer that is not streamed."""


class ChoicesWriter(Writer):
    """Answers that have choices. Chunks are put together from prepared parts: only what is new is
    serialized for each.

    Args:
        prefix: of the answer's id.
        kind: of the answer, one of `CHUNKS`.
    """

    def __init__(
        self, generation: Generation, form: AnswerFormat, *, prefix: str, kind: str
    ) -> None:
        super().__init__(generation, is_streamed=form.is_streamed)
        self._form = form
        self._head: dict[str, object] = {
            "id": new_id(prefix),
            "object": kind,
            "created": generation.created_s,
            "model": generation.plan.asked_model,
        }
        self._chunk_head = orjson.dumps(self._head | {"object": CHUNKS[kind]})[:-1] + b","
        self._num_sent = 0  # tokens of the pieces that chunks were made of
        self._name = name_of(generation.plan.model.tokenizer, as_ids=form.token_names_are_ids)
        self._texts: list[list[str]] = [[] for _ in generation.choices]
        self._tokens: list[list[int]] = [[] for _ in generation.choices]

    def add(self, piece: Piece) -> None:
        if self._form.has_token_ids:
            self._tokens[piece.index] += piece.tokens

    def last_chunks(self) -> list[bytes]:
        if not self._form.has_usage:
            return [DONE]
        usage = orjson.dumps(self.generation.usage())
        return [b'%b"choices":[],"usage":%b}' % (self._chunk_head, usage), DONE]

    def _prompt_entries(self, index: int) -> list[TokenLogprobs]:
        return self.generation.choices[index].prompt_logprobs or []

    def _num_prompt_entries(self, indices: Iterable[int]) -> int:
        """Of the prompts of these choices, if they are asked for beside the text."""
        if self._form.num_prompt_top is None:
            return 0
        return sum(len(self._prompt_entries(index)) for index in indices)

    def _prompt_logprobs(self, index: int) -> dict[str, Any]:
        """The member with those of a choice's prompt, if they are asked for."""
        if self._form.num_prompt_top is None:
            return {}
        entries = self._prompt_entries(index)
        return {"prompt_logprobs": prompt_list(self._name, entries, self._form.num_prompt_top)}

    def _whole(self, choices: list[dict[str, Any]], **more: object) -> bytes:
        usage = self.generation.usage()
        return orjson.dumps({**self._head, "choices": choices, "usage": usage, **more})

    def _whole_choice(self, index: int, logprobs: object, **content: object) -> dict[str, Any]:
        choice = {
            "index": index,
            **content,
            "logprobs": logprobs,
            "finish_reason": self.generation.choices[index].finish,
        }
        if self._form.has_token_ids:
            choice["token_ids"] = self._tokens[index]
        return choice

    def _chunk(self, choice: bytes, more: bytes = b"") -> bytes:
        """A streamed chunk with one choice.

        Args:
            more: members beside ``choices``, each with a comma behind it.
        """
        usage = b""
        if self._form.has_usage_always:
            usage = b',"usage":%b' % orjson.dumps(self.generation.usage(self._num_sent))
        elif self._form.has_usage:
            usage = b',"usage":null'
        return b'%b%b"choices":[%b]%b}' % (self._chunk_head, more, choice, usage)
