"""A message as Anthropic writes it: blocks, whole or as events."""

from typing import Any

import orjson

from services.frontend.api.text.generation import Generation
from services.frontend.api.text.items import ItemsWriter, TextKind, named_event
from services.frontend.api.text.replies import Call
from services.frontend.core.message_blocks import input_of
from services.frontend.core.replies.thoughts import Thought
from services.frontend.core.tools import Said
from services.frontend.http.errors import anthropic_error
from services.frontend.prepare.reading import Reading
from shared.errors import SymphonyError
from shared.ids import public_id

NAMES: dict[TextKind, str] = {Said: "text", Thought: "thinking"}


class MessageWriter(ItemsWriter):
    """One choice, as the blocks of a message.

    Args:
        model: as the request calls it.
        reading: how the reply is read.
        has_edits: the request has edits of its context, of which none is made.
    """

    def __init__(
        self,
        generation: Generation,
        model: str,
        reading: Reading,
        *,
        is_streamed: bool,
        has_edits: bool = False,
    ) -> None:
        super().__init__(generation, reading, is_streamed=is_streamed)
        self._model = model
        self._id = public_id("msg")
        self._edits: dict[str, Any] = {}
        if has_edits:
            self._edits["context_management"] = {"applied_edits": []}

    def whole(self) -> bytes:
        return orjson.dumps(self._message(self.items, *self._end_reason()))

    def begin(self) -> list[bytes]:
        return [named_event("message_start", message=self._message([], None, None))]

    def last_chunks(self) -> list[bytes]:
        reason, stop = self._end_reason()
        delta = {"stop_reason": reason, "stop_sequence": stop}
        return [
            named_event("message_delta", delta=delta, usage=self._usage(), **self._edits),
            named_event("message_stop"),
        ]

    def failure_chunk(self, error: SymphonyError) -> bytes:
        request_id = self.generation.plan.request.origin.request_id
        return named_event("error", **anthropic_error(error, request_id))

    def begin_text(self, kind: TextKind) -> list[bytes]:
        if kind is Thought:
            return self._begin_block({"type": "thinking", "thinking": "", "signature": ""})
        return self._begin_block({"type": "text", "text": ""})

    def begin_call(self, call: Call) -> list[bytes]:
        call_id = call.call_id.replace("call_", "toolu_", 1)
        block = {"type": "tool_use", "id": call_id, "name": call.name, "input": {}}
        return self._begin_block(block)

    def add_text(self, kind: TextKind, text: str) -> bytes:
        name = NAMES[kind]
        return self._delta({"type": f"{name}_delta", name: text})

    def add_arguments(self, text: str) -> list[bytes]:
        return [self._delta({"type": "input_json_delta", "partial_json": text})]

    def end_text(self, kind: TextKind, text: str, *, is_cut: bool) -> list[bytes]:
        self.items[-1][NAMES[kind]] = text
        return self._end_block()

    def end_call(self, arguments: str, *, is_cut: bool) -> list[bytes]:
        self.items[-1]["input"] = orjson.Fragment(input_of(arguments))  # numbers of any length
        return self._end_block()

    def _begin_block(self, block: dict[str, Any]) -> list[bytes]:
        self.items.append(block)
        at = len(self.items) - 1
        return [named_event("content_block_start", index=at, content_block=block)]

    def _delta(self, delta: dict[str, str]) -> bytes:
        return named_event("content_block_delta", index=len(self.items) - 1, delta=delta)

    def _end_block(self) -> list[bytes]:
        return [named_event("content_block_stop", index=len(self.items) - 1)]

    def _end_reason(self) -> tuple[str, str | None]:
        """Why the reply ended, and the stop string that is why."""
        choice, calls = self.generation.choices[0], self.calls
        if choice.finish == "length":
            return "max_tokens", None
        if calls is not None and calls.names and not calls.is_cut:
            return "tool_use", None
        if choice.stop_string is not None:
            return "stop_sequence", choice.stop_string
        return "end_turn", None

    def _message(
        self, content: list[dict[str, Any]], reason: str | None, stop: str | None
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": self._usage(),
            **self._edits,
        }

    def _usage(self) -> dict[str, int]:
        """Tokens so far; those of the prompt that were not computed are counted apart."""
        usage: dict[str, Any] = self.generation.usage()
        num_cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - num_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": num_cached,
            "output_tokens": usage["completion_tokens"],
        }
