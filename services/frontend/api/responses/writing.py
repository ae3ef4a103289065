"""A response as OpenAI writes it: items, whole or as events."""

from dataclasses import dataclass
from typing import Any

import orjson

from services.frontend import telemetry
from services.frontend.api.bodies import ResponsesBody
from services.frontend.api.text.generation import Generation
from services.frontend.api.text.reading import Reading, ReplyOfChoice, Told
from services.frontend.api.text.tools import Call
from services.frontend.api.text.writing import Writer
from services.frontend.app import App
from services.frontend.core.choice import Piece
from services.frontend.core.stored_responses import Past, StoredResponse, new_response_id
from services.frontend.core.thoughts import Thought
from services.frontend.core.tools import Argued, Said
from services.frontend.errors import error_body
from shared.errors import SymphonyError
from shared.ids import new_id


@dataclass(frozen=True, slots=True)
class TextKind:
    """Items that are texts.

    Attributes:
        part: what the text in it is called.
        more, more_of_part: members that they have beside.
    """

    item: str
    prefix: str
    part: str
    more: dict[str, Any]
    more_of_part: dict[str, Any]


KINDS = {
    Said: TextKind(
        "message", "msg", "output_text", {"role": "assistant"}, {"annotations": [], "logprobs": []}
    ),
    Thought: TextKind("reasoning", "rs", "reasoning_text", {"summary": []}, {}),
}


class ResponseWriter(Writer):
    """One choice, as a response's output, which is stored before its end is told.

    Args:
        body: repeated in the answer.
        reading: how the reply is read.
        items: of its input.
        past: what it goes on from.
    """

    def __init__(
        self,
        app: App,
        generation: Generation,
        body: ResponsesBody,
        reading: Reading,
        items: list[Any],
        past: Past,
    ) -> None:
        super().__init__(generation)
        self._app = app
        self._body = body
        self._items = items
        self._past = past
        self._is_stored = body.store is not False  # until it is known
        self._id = new_response_id(past.session_id)
        self._reply = ReplyOfChoice(reading)
        self._output: list[dict[str, Any]] = []
        self._call: Call | None = None  # that the last item is of
        self._text: list[str] = []  # that the last item is of
        self._num_events = 0

    def num_entries(self, piece: Piece | None) -> int:
        return 0

    def add(self, piece: Piece) -> None:
        self.chunks(piece)

    def chunks(self, piece: Piece) -> list[bytes]:
        events = []
        if not self._num_events:
            begun = self._response("in_progress")
            events += [
                self._event("response.created", response=begun),
                self._event("response.in_progress", response=begun),
            ]
        for told in self._read(piece):
            match told:
                case Thought(text) | Said(text):
                    events += self._say(KINDS[type(told)], text)
                case Call():
                    events += self._begin_call(told)
                case Argued(more):
                    events.append(
                        self._event(
                            "response.function_call_arguments.delta", **self._place(), delta=more
                        )
                    )
        if piece.finish is not None:
            events += self._end_item(is_cut=self._status() == "incomplete")
        return events

    async def settle(self) -> None:
        plan, prompt = self.generation.plan, self.generation.prompt_of(0)
        session_id, claim = plan.owner.session_id, prompt.claim
        if not self._is_stored:
            return
        assert session_id is not None and claim is not None
        stored = StoredResponse(self._response(self._status()), self._items)
        tenant = plan.owner.tenant
        self._is_stored = not claim.is_forgotten and await self._app.responses.put(
            tenant, session_id, claim.generation, stored, self._app.quotas.of(tenant)
        )
        if not self._is_stored:
            telemetry.RESPONSES_NOT_STORED.inc()

    def last_chunks(self) -> list[bytes]:
        status = self._status()
        return [self._event(f"response.{status}", response=self._response(status))]

    def failure_chunk(self, error: SymphonyError) -> bytes:
        told = orjson.loads(error_body(error))["error"]
        return self._event("error", **{name: told[name] for name in ("code", "message", "param")})

    def whole(self) -> bytes:
        return orjson.dumps(self._response(self._status()))

    def _read(self, piece: Piece) -> list[Told]:
        told = list(self._reply.take(piece))
        if self._reply.calls is not None:
            self.generation.tools = self._reply.calls.told_names
        if self._reply.is_thinking:
            self.generation.num_thought_tokens = self._reply.num_thought_tokens
        return told

    def _say(self, kind: TextKind, text: str) -> list[bytes]:
        """More text of a message, or of thoughts."""
        events = []
        if not self._output or self._output[-1]["type"] != kind.item:
            events += self._end_item()
            item = {"type": kind.item, "id": new_id(kind.prefix), **kind.more}
            self._output.append({**item, "status": "in_progress", "content": []})
            events.append(self._item_event("added"))
            self._output[-1]["content"] = [{"type": kind.part, "text": "", **kind.more_of_part}]
            events.append(self._part_event("added"))
        self._text.append(text)
        events.append(self._text_event(kind, "delta", delta=text))
        return events

    def _text_event(self, kind: TextKind, what: str, **text: str) -> bytes:
        more: dict[str, Any] = {"logprobs": []} if kind.item == "message" else {}
        name = f"response.{kind.part}.{what}"
        return self._event(name, **self._place(), content_index=0, **text, **more)

    def _begin_call(self, call: Call) -> list[bytes]:
        events = self._end_item()
        item = {"type": "function_call", "id": new_id("fc"), "call_id": call.call_id}
        self._output.append({**item, "name": call.name, "arguments": "", "status": "in_progress"})
        self._call = call
        return [*events, self._item_event("added")]

    def _end_item(self, *, is_cut: bool = False) -> list[bytes]:
        """The last item takes no more; the reply may be cut off in it."""
        if not self._output or self._output[-1]["status"] != "in_progress":
            return []
        item, events = self._output[-1], []
        if self._call is not None:
            item["arguments"] = self._call.written()
            events.append(
                self._event(
                    "response.function_call_arguments.done", **self._place(), name=item["name"],
                    arguments=item["arguments"],
                )
            )  # fmt: skip
        else:
            item["content"][0]["text"] = text = "".join(self._text)
            kind = next(kind for kind in KINDS.values() if kind.item == item["type"])
            events.append(self._text_event(kind, "done", text=text))
            events.append(self._part_event("done"))
        item["status"] = "incomplete" if is_cut else "completed"
        events.append(self._item_event("done"))
        self._call, self._text = None, []
        return events

    def _status(self) -> str:
        return "incomplete" if self.generation.choices[0].finish == "length" else "completed"

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    def _item_event(self, what: str) -> bytes:
        at, item = len(self._output) - 1, self._output[-1]
        return self._event(f"response.output_item.{what}", output_index=at, item=item)

    def _part_event(self, what: str) -> bytes:
        part = self._output[-1]["content"][0]
        kind = f"response.content_part.{what}"
        return self._event(kind, **self._place(), content_index=0, part=part)

    def _event(self, kind: str, **fields: Any) -> bytes:
        """An event's data; its name goes behind, in a line of its own."""
        number, self._num_events = self._num_events, self._num_events + 1
        data = orjson.dumps({"type": kind, "sequence_number": number, **fields})
        return b"%b\nevent: %b" % (data, kind.encode())

    def _response(self, status: str) -> dict[str, Any]:
        body, plan = self._body, self.generation.plan
        sampling = plan.samplings[0]
        is_over = status != "in_progress"
        tools = [{"type": "function", **t.model_dump(exclude={"type"})} for t in body.tools or []]
        return {
            "id": self._id,
            "object": "response",
            "created_at": self.generation.created_s,
            "status": status,
            "error": None,
            "incomplete_details": (
                {"reason": "max_output_tokens"} if status == "incomplete" else None
            ),
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": body.model,
            "output": self._output if is_over else [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": self._past.response_id,
            "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": None},
            "session_id": self._past.session_id,
            "store": self._is_stored,
            "temperature": sampling.temperature,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
            "tools": tools,
            "top_p": sampling.top_p,
            "truncation": body.truncation or "disabled",
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
