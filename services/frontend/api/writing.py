"""What the writers of chat and completions share: an answer's frame, usage and token ids."""

import orjson

from services.frontend.api.bodies import Generate
from services.frontend.api.generation import Generation
from services.frontend.api.logprobs import name_of
from services.frontend.core.choice import Piece
from shared.ids import new_id

CHUNKS = {"chat.completion": "chat.completion.chunk", "text_completion": "text_completion"}


class Frame:
    """All of an answer but its choices. Chunks are put together from prepared parts: only what is
    new is serialized for each.

    Attributes:
        name: how log-probabilities name tokens.
        tokens: generated, one list a choice; kept only if the client wants to see them.
    """

    def __init__(
        self, generation: Generation, body: Generate, created: int, *, prefix: str, kind: str
    ) -> None:
        self.generation = generation
        self._head: dict[str, object] = {
            "id": new_id(prefix),
            "object": kind,
            "created": created,
            "model": body.model,
        }
        self._chunk_head = orjson.dumps(self._head | {"object": CHUNKS[kind]})[:-1] + b","
        options = body.stream_options
        self._wants_usage = bool(options and options.include_usage)
        self._wants_usage_always = bool(options and options.continuous_usage_stats)
        self.wants_token_ids = bool(body.return_token_ids)
        self.name = name_of(
            generation.plan.model.tokenizer, as_ids=bool(body.return_tokens_as_token_ids)
        )
        self.tokens: list[list[int]] = [[] for _ in generation.choices]

    def add(self, piece: Piece) -> None:
        """Keep a piece's tokens."""
        if self.wants_token_ids:
            self.tokens[piece.index] += piece.tokens

    def whole(self, choices: list[dict[str, object]], **more: object) -> bytes:
        """The answer that is not streamed."""
        usage = self.generation.usage()
        return orjson.dumps({**self._head, "choices": choices, "usage": usage, **more})

    def chunk(self, choice: bytes, more: bytes = b"") -> bytes:
        """A streamed chunk with one choice.

        Args:
            more: members beside ``choices``, each with a comma behind it.
        """
        usage = b""
        if self._wants_usage_always:
            usage = b',"usage":%b' % orjson.dumps(self.generation.usage())
        elif self._wants_usage:
            usage = b',"usage":null'
        return b'%b%b"choices":[%b]%b}' % (self._chunk_head, more, choice, usage)

    def usage_chunk(self) -> bytes | None:
        """The chunk after the last, if the client asked for it."""
        if not self._wants_usage:
            return None
        usage = orjson.dumps(self.generation.usage())
        return b'%b"choices":[],"usage":%b}' % (self._chunk_head, usage)
