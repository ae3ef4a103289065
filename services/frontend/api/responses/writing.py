"""A response as OpenAI writes it: items, whole or as events."""

from dataclasses import asdict, dataclass
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
from services.frontend.core.sessions.response_items import shown
from services.frontend.core.sessions.stored_responses import (
    ITEM_PREFIXES,
    StoredResponse,
    item_id,
    new_response_id,
    response_error,
)
from services.frontend.core.tools import Said
from services.frontend.core.tools.free_form import InputReader, input_of
from services.frontend.observability import telemetry
from services.frontend.prepare.reading import Reading
from services.frontend.sessions.response_store import Which
from services.frontend.sessions.store import StoreAway
from shared.errors import InvalidRequest, NoCapacity, SymphonyError


@dataclass(frozen=True, slots=True)
class _Words:
    """What items of one kind of text are called.

    Attributes:
        part: the text in them.
        more, more_of_part: members that they have beside.
    """

    item: str
    part: str
    more: dict[str, Any]
    more_of_part: dict[str, Any]


WORDS: dict[TextKind, _Words] = {
    Said: _Words("message", "output_text", {"role": "assistant"}, {"annotations": []}),
    Thought: _Words("reasoning", "reasoning_text", {"summary": []}, {}),
}


# What a call is, and the member that has what is said to the tool.
CALLS = {
    "function": ("function_call", "arguments"),
    "custom": ("custom_tool_call", "input"),
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
        self._is_joined = form.past.is_conversation  # as well
        self._error: dict[str, str] | None = None
        self._input: InputReader | None = None  # of the call, if it is of a custom tool
        self._inputs: list[str] = []  # as it was read
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
        await self.join()
        if not self._is_stored:
            return
        try:
            self._is_stored = await self.store()
        except StoreAway:
            self._is_stored = False
        if not self._is_stored:
            telemetry.RESPONSES_NOT_STORED.inc()

    async def join(self) -> None:
        """Add what was said to the conversation, if it is in one."""
        owner, form = self.generation.plan.owner, self.form
        if not form.past.is_conversation:
            return
        assert owner.session_id is not None
        asked = [
            shown(item, item_id(ITEM_PREFIXES[item["type"]], self.id, at))
            for at, item in enumerate(form.given)
        ]
        limits = self._app.quotas.of(owner.tenant)
        try:
            await self._app.conversations.change(
                owner.tenant, owner.session_id, limits, "add",
                items=[*asked, *map(_to_keep, self.items)],
            )  # fmt: skip
        except (NoCapacity, InvalidRequest):  # no room, or it was deleted
            self._is_joined = False
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
        self._error = response_error(error)
        return self._broken_off("failed")

    def cancelled_chunk(self) -> bytes:
        """The last event of one that was cancelled: OpenAI has none of its own for it."""
        return self._broken_off("cancelled")

    def _broken_off(self, status: str) -> bytes:
        self._is_stored = self._is_stored and self.form.is_background
        self._is_joined = False
        if self.items and self.items[-1]["status"] == "in_progress":
            self.items[-1]["status"] = "incomplete"
        return self._event("response.failed", response=self._response(status))

    def whole(self) -> bytes:
        return orjson.dumps(self._response(self._status()))

    def begin(self) -> list[bytes]:
        begun = self._response("in_progress")
        created = [self._event("response.created", response=begun)]
        if self.form.is_background:
            queued = self._response("queued")
            created.append(self._event("response.queued", response=queued))
        return [*created, self._event("response.in_progress", response=begun)]

    def begin_text(self, kind: TextKind) -> list[bytes]:
        words = WORDS[kind]
        item = {"type": words.item, "id": self._new_id(words.item), **words.more}
        self.items.append({**item, "status": "in_progress", "content": []})
        added = self._item_event("added")
        part = {"type": words.part, "text": "", **words.more_of_part, **_logprobs(kind, [])}
        self.items[-1]["content"] = [part]
        return [added, self._part_event("added")]

    def begin_call(self, call: Call) -> list[bytes]:
        self._logprobs_due = []  # they are of what is no text
        tool = self.form.tools.names[call.name]
        is_custom = tool.kind == "custom"
        self._input, self._inputs = InputReader() if is_custom else None, []
        kind, said = CALLS[tool.kind]
        item = {"type": kind, "id": self._new_id(kind), "call_id": call.call_id, "name": tool.name}
        item |= {} if tool.namespace is None else {"namespace": tool.namespace}
        self.items.append({**item, said: "", "status": "in_progress"})
        return [self._item_event("added")]

    def add_text(self, kind: TextKind, text: str) -> bytes:
        entries, self._logprobs_due = self._logprobs_due, []
        if kind is Said:
            self._part["logprobs"] += entries
        return self._text_event(kind, "delta", delta=text, **_logprobs(kind, entries))

    def add_arguments(self, text: str) -> list[bytes]:
        if self._input is None:
            kind = "response.function_call_arguments.delta"
            return [self._event(kind, **self._place(), delta=text)]
        read = self._input.feed(text)
        return self._input_events(read)

    def _input_events(self, text: str) -> list[bytes]:
        """Of more of the input of a custom tool's call."""
        if not text:
            return []
        self._inputs.append(text)
        kind = "response.custom_tool_call_input.delta"
        return [self._event(kind, **self._place(), delta=text)]

    def end_text(self, kind: TextKind, text: str, *, is_cut: bool) -> list[bytes]:
        part = self._part
        part["text"] = text
        logprobs = _logprobs(kind, part.get("logprobs", []))
        done = [self._text_event(kind, "done", text=text, **logprobs), self._part_event("done")]
        return [*done, self._end_item(is_cut=is_cut)]

    def end_call(self, arguments: str, *, is_cut: bool) -> list[bytes]:
        item = self.items[-1]
        if self._input is not None:
            rest = [] if self._inputs else self._input_events(input_of(arguments))
            item["input"] = "".join(self._inputs)
            kind = "response.custom_tool_call_input.done"
            done = self._event(kind, **self._place(), input=item["input"])
            return [*rest, done, self._end_item(is_cut=is_cut)]
        item["arguments"] = arguments
        kind = "response.function_call_arguments.done"
        done = self._event(kind, **self._place(), name=item["name"], arguments=arguments)
        return [done, self._end_item(is_cut=is_cut)]

    def _end_item(self, *, is_cut: bool) -> bytes:
        self.items[-1]["status"] = "incomplete" if is_cut else "completed"
        return self._item_event("done")

    def _status(self) -> str:
        return "incomplete" if self.generation.choices[0].finish == "length" else "completed"

    def _new_id(self, kind: str) -> str:
        """Of an item of this type that is added."""
        return item_id(ITEM_PREFIXES[kind], self.id, len(self.form.given) + len(self.items))

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
            "conversation": {"id": asked.past.session_id} if self._is_joined else None,
            "created_at": self.generation.created_s,
            "status": status,
            "error": self._error,
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
            "tools": asked.tools.given,
            "top_logprobs": asked.num_top or 0,
            "top_p": sampling.top_p,
            "truncation": asked.truncation,
            "usage": usage_of(self.generation) if is_over else None,
            **({"warnings": list(map(asdict, asked.warnings))} if asked.warnings else {}),
        }


def usage_of(generation: Generation) -> dict[str, Any]:
    """Its tokens as the Responses API counts them."""
    usage: dict[str, Any] = generation.usage()
    details = usage["prompt_tokens_details"]
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            name: details[name] for name in ("cached_tokens", "cache_write_tokens")
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": usage.get("completion_tokens_details", {"reasoning_tokens": 0}),
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
