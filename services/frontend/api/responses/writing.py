"""A response as OpenAI writes it: items, whole or as events."""

from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import orjson

from services.frontend.api.responses.chats import ResponseForm
from services.frontend.api.text.generation import Generation
from services.frontend.api.text.items import ItemsWriter, TextKind, named_event
from services.frontend.api.text.logprobs import chat_entry, name_of
from services.frontend.api.text.replies import Call
from services.frontend.app import App
from services.frontend.core.replies.choice import Piece
from services.frontend.core.replies.thoughts import Thought
from services.frontend.core.sessions.stored_responses import StoredResponse, new_response_id
from services.frontend.core.tools import Said
from services.frontend.http.errors import error_fields
from services.frontend.observability import telemetry
from services.frontend.prepare.reading import Reading
from services.frontend.sessions.response_store import Which
from services.frontend.sessions.store import StoreAway
from shared.errors import SymphonyError
from shared.ids import new_id


@dataclass(frozen=True, slots=True)
class _Words:
    """What items of one kind of text are called.

    Attributes:
        prefix: of their ids.
        part: the text in them.
        more, more_of_part: members that they have beside.
    """

    item: str
    prefix: str
    part: str
    more: dict[str, Any]
    more_of_part: dict[str, Any]


WORDS: dict[TextKind, _Words] = {
    Said: _Words("message", "msg", "output_text", {"role": "assistant"}, {"annotations": []}),
    Thought: _Words("reasoning", "rs", "reasoning_text", {"summary": []}, {}),
}


class ResponseWriter(ItemsWriter):
    """One choice, as a response's output, which is stored before its end is sent.

    Args:
        form: what the answer repeats.
        reading: how the reply is read.
    """

    def __init__(
        self, app: App, generation: Generation, form: ResponseForm, reading: Reading
    ) -> None:
        super().__init__(generation, reading, is_streamed=form.is_streamed)
        self._app = app
        self.form = form
        self._is_stored = form.is_stored  # until it is known
        self.id = new_response_id(form.past.session_id)
        self._num_events = 0
        tokenizer = generation.plan.model.tokenizer
        self._entry = partial(
            chat_entry, tokenizer, name_of(tokenizer, as_ids=False), num_top=form.num_top or 0
        )
        self._logprobs_due: list[dict[str, Any]] = []  # of tokens whose text has still to come

    def num_entries(self, piece: Piece | None) -> int:
        if piece is None:  # those of the reply are written as they come
            return 0
        if piece.finish is None:
            return len(piece.logprobs)
        parts = chain(*(item.get("content", ()) for item in self.items))  # sent whole
        return len(piece.logprobs) + sum(len(part.get("logprobs", ())) for part in parts)

    def chunks(self, piece: Piece) -> list[bytes]:
        if self.form.num_top is not None:
            self._logprobs_due += [self._entry(entry) for entry, _ in piece.logprobs]
        return super().chunks(piece)

    async def settle(self) -> None:
        if not self._is_stored:
            return
        try:
            self._is_stored = await self.store()
        except StoreAway:
            self._is_stored = False
        if not self._is_stored:
            telemetry.RESPONSES_NOT_STORED.inc()

    async def store(self, which: Which = "all") -> bool:
        """Store it, or that it is begun; whether it is.

        Raises:
            StoreAway: Redis does not answer.
        """
        owner, claim = self.generation.plan.owner, self.generation.plan.prompt_of(0).claim
        assert owner.session_id is not None and claim is not None
        response = self._response("in_progress" if which == "begin" else self._status())
        output = response.pop("output")
        stored = StoredResponse(response, self.form.given, list(map(_to_keep, output)))
        limits = self._app.quotas.of(owner.tenant)
        return not claim.is_forgotten and await self._app.responses.put(
            owner.tenant, owner.session_id, claim.epoch, stored, limits, which
        )

    def begun(self) -> bytes:
        """What is answered of one that is made in the background."""
        return orjson.dumps(self._response("queued"))

    def last_chunks(self) -> list[bytes]:
        status = self._status()
        return [self._event(f"response.{status}", response=self._response(status))]

    def failure_chunk(self, error: SymphonyError) -> bytes:
        given = error_fields(error)
        return self._event("error", **{name: given[name] for name in ("code", "message", "param")})

    def whole(self) -> bytes:
        return orjson.dumps(self._response(self._status()))

    def begin(self) -> list[bytes]:
        begun = self._response("in_progress")
        return [
            self._event("response.created", response=begun),
            self._event("response.in_progress", response=begun),
        ]

    def begin_text(self, kind: TextKind) -> list[bytes]:
        words = WORDS[kind]
        item = {"type": words.item, "id": new_id(words.prefix), **words.more}
        self.items.append({**item, "status": "in_progress", "content": []})
        added = self._item_event("added")
        part = {"type": words.part, "text": "", **words.more_of_part, **_logprobs(kind, [])}
        self.items[-1]["content"] = [part]
        return [added, self._part_event("added")]

    def begin_call(self, call: Call) -> list[bytes]:
        self._logprobs_due = []  # they are of what is no text
        item = {"type": "function_call", "id": new_id("fc"), "call_id": call.call_id}
        self.items.append({**item, "name": call.name, "arguments": "", "status": "in_progress"})
        return [self._item_event("added")]

    def add_text(self, kind: TextKind, text: str) -> bytes:
        entries, self._logprobs_due = self._logprobs_due, []
        if kind is Said:
            self._part["logprobs"] += entries
        return self._text_event(kind, "delta", delta=text, **_logprobs(kind, entries))

    def add_arguments(self, text: str) -> bytes:
        kind = "response.function_call_arguments.delta"
        return self._event(kind, **self._place(), delta=text)

    def end_text(self, kind: TextKind, text: str, *, is_cut: bool) -> list[bytes]:
        part = self._part
        part["text"] = text
        logprobs = _logprobs(kind, part.get("logprobs", []))
        done = [self._text_event(kind, "done", text=text, **logprobs), self._part_event("done")]
        return [*done, self._end_item(is_cut=is_cut)]

    def end_call(self, arguments: str, *, is_cut: bool) -> list[bytes]:
        item = self.items[-1]
        item["arguments"] = arguments
        kind = "response.function_call_arguments.done"
        done = self._event(kind, **self._place(), name=item["name"], arguments=arguments)
        return [done, self._end_item(is_cut=is_cut)]

    def _end_item(self, *, is_cut: bool) -> bytes:
        self.items[-1]["status"] = "incomplete" if is_cut else "completed"
        return self._item_event("done")

    def _status(self) -> str:
        return "incomplete" if self.generation.choices[0].finish == "length" else "completed"

    @property
    def _part(self) -> dict[str, Any]:
        """Of the last item, which is a text."""
        part: dict[str, Any] = self.items[-1]["content"][0]
        return part

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}

    def _item_event(self, what: str) -> bytes:
        at, item = len(self.items) - 1, self.items[-1]
        return self._event(f"response.output_item.{what}", output_index=at, item=item)

    def _part_event(self, what: str) -> bytes:
        kind = f"response.content_part.{what}"
        return self._event(kind, **self._place(), content_index=0, part=self._part)

    def _text_event(self, kind: TextKind, what: str, **fields: Any) -> bytes:
        name = f"response.{WORDS[kind].part}.{what}"
        return self._event(name, **self._place(), content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._num_events = self._num_events, self._num_events + 1
        return named_event(kind, sequence_number=number, **fields)

    def _response(self, status: str) -> dict[str, Any]:
        asked, plan = self.form, self.generation.plan
        sampling = plan.samplings[0]
        is_over = status not in {"queued", "in_progress"}
        return {
            "id": self.id,
            "object": "response",
            "background": asked.is_background,
            "created_at": self.generation.created_s,
            "status": status,
            "error": None,
            "incomplete_details": (
                {"reason": "max_output_tokens"} if status == "incomplete" else None
            ),
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata,
            "model": plan.asked_model,
            "output": self.items if is_over else [],
            "parallel_tool_calls": asked.is_parallel,
            "previous_response_id": asked.past.response_id,
            "reasoning": {"effort": asked.effort, "summary": None},
            "session_id": asked.past.session_id,
            "store": self._is_stored,
            "temperature": sampling.temperature,
            "text": asked.text,
            "tool_choice": asked.tool_choice,
            "tools": asked.tools,
            "top_logprobs": asked.num_top or 0,
            "top_p": sampling.top_p,
            "truncation": asked.truncation,
            "usage": self._usage() if is_over else None,
        }

    def _usage(self) -> dict[str, Any]:
        usage: dict[str, Any] = self.generation.usage()
        thoughts = usage.get("completion_tokens_details", {"reasoning_tokens": 0})
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": thoughts,
            "total_tokens": usage["total_tokens"],
        }


def _logprobs(kind: TextKind, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Their member: only what is said has one."""
    return {"logprobs": entries} if kind is Said else {}


def _to_keep(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it is stored: without log-probabilities, which are many times its text."""
    if item["type"] != "message":
        return item
    return {**item, "content": [{**part, "logprobs": []} for part in item["content"]]}
