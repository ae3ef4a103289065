"""Calls of tools in a reply, as OpenAI writes them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from services.frontend.core.tools import Argued, Called, Said, ToolParser
from services.frontend.prepare.reading import Tools
from shared.ids import new_id

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
                    call_id = new_id("call")
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
