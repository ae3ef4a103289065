"""Replies as they come: what is thought, what is said, and which tools are called."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from services.frontend.api.text.generation import Generation
from services.frontend.core.replies.choice import Piece
from services.frontend.core.replies.thoughts import Thought, ThoughtReader
from services.frontend.core.tools import Argued, Called, Said, ToolParser
from services.frontend.prepare.reading import Reading, Tools
from shared.ids import public_id

NAMES_MAX = 16  # of tools that a reply calls


@dataclass(slots=True)
class Call:
    """A call as far as it was written."""

    call_id: str
    name: str
    arguments: list[str]

    def written(self) -> str:
        return "".join(self.arguments)


class CallsOfChoice:
    """One choice's reply as it comes.

    Attributes:
        names: of the tools that it called, each once, in order.
        is_cut: it ended within a call, or one of them is broken: they are not to be carried out.
    """

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._parser = ToolParser(
            tools.family, tools.names, tools.calls_max, is_forced=tools.is_forced
        )
        self._calls: list[Call] = []
        self.names: dict[str, None] = {}
        self.is_cut = False

    def take(
        self, text: str, *, is_over: bool, is_cut: bool = False
    ) -> Iterator[Said | Call | Argued]:
        """More of it: what is said, calls that begin, and more of the last one's arguments.

        Args:
            is_over: nothing comes behind it.
            is_cut: not because the model ended it.
        """
        events = self._parser.feed(text)
        if is_over:
            self.is_cut = self._parser.is_within or self._parser.has_broken
            events += self._parser.finish(is_cut=is_cut)
        for event in events:
            match event:
                case Said():
                    yield event
                case Called(name):
                    call_id = public_id("call")
                    if num_chars := self._tools.family.id_chars:
                        call_id = call_id[-num_chars:]
                    self._calls.append(Call(call_id, name, []))
                    self.names[name] = None
                    yield self._calls[-1]
                case Argued(more):
                    self._calls[-1].arguments.append(more)
                    yield event

    @property
    def first_names(self) -> list[str]:
        """Of tools that it called, as many as the tracker is sent."""
        return list(self.names)[:NAMES_MAX]

    @property
    def num(self) -> int:
        """How many have begun."""
        return len(self._calls)

    def written(self) -> list[dict[str, Any]]:
        """All of them, as a message has them."""
        return list(map(written, self._calls))


def written(call: Call) -> dict[str, Any]:
    """A call as a message has it."""
    function = {"name": call.name, "arguments": call.written()}
    return {"id": call.call_id, "type": "function", "function": function}


ReplyPart = Thought | Said | Call | Argued


class ReplyOfChoice:
    """One choice's reply as it comes.

    Attributes:
        calls: that were read in it; None: it may call nothing.
        num_thought_tokens: of its tokens, those that thoughts took, with their marks.
    """

    def __init__(self, reading: Reading) -> None:
        self._shows_thoughts = reading.shows_thoughts
        self.calls = None if reading.tools is None else CallsOfChoice(reading.tools)
        self.num_thought_tokens = 0
        self._num_unread_tokens = 0  # may be of a mark that begins thoughts
        self._thoughts = None
        if reading.thoughts is not None:
            self._thoughts = ThoughtReader(reading.thoughts, is_within=reading.is_within)

    @property
    def is_thinking(self) -> bool:
        """Whether thoughts are separated in it."""
        return self._thoughts is not None

    def take(self, piece: Piece) -> Iterator[ReplyPart]:
        """More of it: what is thought and said, calls that begin, and more of the last one's
        arguments.
        """
        is_over = piece.finish is not None
        said = piece.text
        if self._thoughts is not None:
            was_over = self._thoughts.is_over
            events = self._thoughts.feed(piece.text) + (self._thoughts.finish() if is_over else [])
            self._num_unread_tokens += len(piece.tokens)
            if self._thoughts.has_begun and not was_over:
                self.num_thought_tokens += self._num_unread_tokens
                self._num_unread_tokens = 0
            if self._shows_thoughts:
                yield from (event for event in events if isinstance(event, Thought))
            said = "".join(event.text for event in events if isinstance(event, Said))
        if self.calls is not None:
            yield from self.calls.take(said, is_over=is_over, is_cut=piece.is_cut)
        elif said:
            yield Said(said)


def report(generation: Generation, replies: Sequence[ReplyOfChoice]) -> None:
    """Hand a generation what was read of its choices up to now."""
    first = replies[0]
    if first.calls is not None:
        generation.tools = first.calls.first_names
    if first.is_thinking:
        generation.num_thought_tokens = sum(reply.num_thought_tokens for reply in replies)
