"""Tools that a chat may call: which there are, and calls as OpenAI writes them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from services.frontend.api.bodies import ChatBody
from services.frontend.api.fields import unsupported
from services.frontend.core.tools import FAMILIES, Argued, Called, Family, Said, ToolParser
from services.frontend.core.tools.forcing import CallRule
from services.frontend.rendering.tokenizer import ModelTokenizer
from shared.errors import InvalidRequest
from shared.ids import new_id

TOOLS_TOLD_MAX = 16  # of those that a reply calls


@dataclass(frozen=True, slots=True)
class Tools:
    """What a reply may call.

    Attributes:
        family: how its model writes calls.
        rules: of each tool that may be called.
        calls_max: None: any number.
        is_forced: it has to call one.
    """

    family: Family
    rules: tuple[CallRule, ...]
    calls_max: int | None = None
    is_forced: bool = False

    @property
    def names(self) -> frozenset[str]:
        return frozenset(rule.name for rule in self.rules)

    @property
    def is_held(self) -> bool:
        """Whether calls that nobody forces are held to a grammar: if some tool is strict, and a
        mark tells calls from text."""
        return self.family.is_marked and any(rule.is_strict for rule in self.rules)


def tools_of(body: ChatBody, tokenizer: ModelTokenizer, parser: str) -> Tools | None:
    """What the reply to a chat may call; None: nothing. What the model is told of tools is the same
    in any case, so that a session's prompts begin alike.

    Args:
        parser: name of a family, or ``auto``.

    Raises:
        InvalidRequest: two tools of one name, or the choice is none of them.
    """
    if not body.tools:
        if body.tool_choice not in (None, "none", "auto"):
            raise InvalidRequest("tool_choice: there are no tools", "tool_choice")
        return None
    rules = {
        tool.function.name: CallRule(
            tool.function.name, tool.function.parameters, bool(tool.function.strict)
        )
        for tool in body.tools
    }
    if len(rules) < len(body.tools):
        raise InvalidRequest("tools: several have the same name", "tools")
    family = FAMILIES.get(parser, tokenizer.tool_family)
    calls_max = 1 if body.parallel_tool_calls is False else None
    match body.tool_choice:
        case "none":
            return None
        case None | "auto":
            return Tools(family, tuple(rules.values()), calls_max)
        case "required":
            return Tools(family, tuple(rules.values()), calls_max, is_forced=True)
        case {"type": "function", "function": {"name": str(name)}}:
            if name not in rules:
                raise InvalidRequest(f"tool_choice: no tool is named {name[:64]!r}", "tool_choice")
            return Tools(family, (rules[name],), 1, is_forced=True)
        case _:
            served = (
                'give "auto", "none", "required", or {"type": "function", "function": {"name"}}'
            )
            raise unsupported("tool_choice", served)


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
    def told_names(self) -> list[str]:
        """Of tools that it called, as many as are told."""
        return list(self.names)[:TOOLS_TOLD_MAX]

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
