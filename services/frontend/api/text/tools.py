"""Tools that a chat may call: which there are, and calls as OpenAI writes them."""

from dataclasses import dataclass
from typing import Any

import orjson

from services.frontend.api.bodies import ChatBody
from services.frontend.core.tools import FAMILIES, Argued, Called, Family, Said, ToolParser
from services.frontend.tokenizer import ModelTokenizer
from shared.errors import InvalidRequest
from shared.ids import new_id


@dataclass(frozen=True, slots=True)
class Tools:
    """What a reply may call.

    Attributes:
        family: how its model writes calls.
        calls_max: None: any number.
    """

    family: Family
    names: frozenset[str]
    calls_max: int | None = None


def tools_of(body: ChatBody, tokenizer: ModelTokenizer, parser: str) -> Tools | None:
    """What the reply to a chat may call; None: nothing. What the model is told of tools is the same
    in any case, so that a session's prompts begin alike.

    Args:
        parser: name of a family, or ``auto``.

    Raises:
        InvalidRequest: two tools of one name.
    """
    if not body.tools:
        return None
    names = [tool.function.name for tool in body.tools]
    if len(set(names)) < len(names):
        raise InvalidRequest("tools: several have the same name", "tools")
    if body.tool_choice == "none":
        return None
    family = FAMILIES.get(parser, tokenizer.tool_family)
    calls_max = 1 if body.parallel_tool_calls is False else None
    return Tools(family, frozenset(names), calls_max)


@dataclass(slots=True)
class _Call:
    call_id: str
    name: str
    arguments: list[str]


class CallsOfChoice:
    """One choice's reply as it comes.

    Attributes:
        names: of the tools that it called, each once, in order.
        is_cut: it ended within a call.
    """

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._parser = ToolParser(tools.family, tools.names, tools.calls_max)
        self._calls: list[_Call] = []
        self._texts: list[str] = []
        self.names: dict[str, None] = {}
        self.is_cut = False

    def read(self, text: str, *, is_over: bool) -> list[bytes]:
        """More of it, as deltas of a message."""
        events = self._parser.feed(text)
        if is_over:
            self.is_cut = self._parser.is_within
            events += self._parser.finish()
        deltas = []
        for event in events:
            match event:
                case Said(said):
                    self._texts.append(said)
                    deltas.append(b'{"content":%b}' % orjson.dumps(said))
                case Called(name):
                    call_id = new_id("call")
                    if num_chars := self._tools.family.id_chars:
                        call_id = call_id[-num_chars:]
                    call = _Call(call_id, name, [])
                    self._calls.append(call)
                    self.names[name] = None
                    deltas.append(self._delta(_written(call)))
                case Argued(more):
                    self._calls[-1].arguments.append(more)
                    deltas.append(self._delta({"function": {"arguments": more}}))
        return deltas

    def message(self) -> dict[str, Any]:
        """All of it, as members of a message that is not streamed."""
        text = "".join(self._texts)
        if not self._calls:
            return {"content": text}
        return {"content": text or None, "tool_calls": list(map(_written, self._calls))}

    def _delta(self, call: dict[str, Any]) -> bytes:
        return orjson.dumps({"tool_calls": [{"index": len(self._calls) - 1, **call}]})


def _written(call: _Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": "".join(call.arguments)}
    return {"id": call.call_id, "type": "function", "function": function}
