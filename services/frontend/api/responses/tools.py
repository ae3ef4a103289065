"""Tools of the Responses API: functions, custom tools, groups of both, and hosted ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from services.frontend.api.bodies.base import unsupported
from services.frontend.api.bodies.fields import param_name
from services.frontend.api.bodies.responses import NamedTool
from services.frontend.api.bodies.text import TOOLS_MAX, ToolFunction
from services.frontend.api.text.requests import tool_request
from services.frontend.core.sessions.response_items import qualified
from services.frontend.core.tools.free_form import parameters_of
from services.frontend.prepare.requests import ToolRequest
from shared.errors import InvalidRequest

# Beginnings of the types of tools that OpenAI runs, or that its models were trained to call.
HOSTED = (
    "web_search", "file_search", "code_interpreter", "image_generation", "local_shell", "shell",
    "mcp", "computer", "apply_patch", "tool_search", "programmatic_tool_calling",
)  # fmt: skip
DEFINITION_CHARS_MAX = 65_536
Kind = Literal["function", "custom"]
Parsed = TypeVar("Parsed", bound=BaseModel)


class GrammarFormat(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class CustomTool(ToolFunction):
    type: Literal["custom"]
    format: GrammarFormat | None = None


class Namespace(ToolFunction):
    type: Literal["namespace"]
    tools: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ToolName:
    """What a call of a tool is written as; the model knows it by its qualified name."""

    kind: Kind
    name: str
    namespace: str | None


@dataclass(frozen=True, slots=True)
class Warned:
    """What of a request was left out."""

    param: str
    code: str
    message: str


@dataclass(slots=True)
class ResponseTools:
    """Attributes:
    given: those that are served, as they were given.
    functions: as the model gets to know them.
    names: by the names of those.
    """

    given: list[dict[str, Any]] = field(default_factory=list)
    functions: list[ToolFunction] = field(default_factory=list)
    names: dict[str, ToolName] = field(default_factory=dict)
    warnings: list[Warned] = field(default_factory=list)

    def matching(self, name: str, namespace: str | None = None) -> list[str]:
        """Names by which the model knows what a client calls so: without a namespace in any."""
        qualified_name = qualified(name, namespace)
        if qualified_name in self.names:
            return [qualified_name]
        if namespace is not None:
            return []
        return [known for known, each in self.names.items() if each.name == name]


def read_tools(given: Sequence[dict[str, Any]]) -> ResponseTools:
    """Of a body's field `tools`. Hosted ones are left out, with a warning.

    Raises:
        InvalidRequest: names the tool and what is wrong with it.
    """
    tools = ResponseTools()
    for at, tool in enumerate(given):
        where = f"tools[{at}]"
        match tool.get("type"):
            case "function" | "custom":
                tools.given.append(_add(tools, tool, where, None))
            case "namespace":
                group = _parsed(Namespace, tool, where)
                members = [
                    _add(tools, member, f"{where}.tools[{number}]", group.name)
                    for number, member in enumerate(group.tools)
                ]
                shown = {"description": group.description or "", "tools": members}
                tools.given.append({"type": "namespace", "name": group.name, **shown})
            case str(kind) if kind.startswith(HOSTED):
                tools.warnings.append(
                    Warned(where, "tool_left_out", f"{kind}: hosted tools are not served")
                )
            case kind:
                served = f"its type {str(kind)[:40]!r} is none of function, custom, namespace"
                raise unsupported(f"{where}.type", served)
        if len(tools.functions) > TOOLS_MAX:
            raise InvalidRequest(f"tools: more than {TOOLS_MAX}", "tools")
    return tools


def choose(tools: ResponseTools, choice: Any, is_parallel: bool | None) -> ToolRequest | None:
    """What a reply may call, or has to; None: nothing.

    Raises:
        InvalidRequest: none of the tools is chosen.
    """
    match choice:
        case None | "auto" | "none" | "required":
            may_call, wanted = tools.functions, choice
        case {"type": "function" | "custom", "name": str(name)}:
            found = tools.matching(name, choice.get("namespace"))
            if len(found) > 1:
                raise InvalidRequest("tool_choice: several tools have this name", "tool_choice")
            may_call = tools.functions
            called = found[0] if found else name
            wanted = {"type": "function", "function": {"name": called}}
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": list(allowed)}:
            names = {name for each in allowed for name in _allowed(tools, each)}
            may_call = [each for each in tools.functions if each.name in names]
            wanted = mode
        case _:
            served = (
                'give "auto", "none", "required", {"type": "function", "name"}, {"type": "custom", '
                '"name"}, or {"type": "allowed_tools", "mode", "tools"} of tools that are served'
            )
            raise unsupported("tool_choice", served)
    return tool_request(may_call, wanted, is_parallel)


def _allowed(tools: ResponseTools, given: Any) -> Iterator[str]:
    """Names of a tool, or of all in a namespace, that is allowed; none of a hosted one."""
    match given:
        case {"type": "function" | "custom", "name": str(name)}:
            found = tools.matching(name, given.get("namespace"))
        case {"type": "namespace", "name": str(name)}:
            found = [known for known, each in tools.names.items() if each.namespace == name]
        case {"type": str(kind)} if kind.startswith(HOSTED):
            return
        case _:
            raise InvalidRequest(
                "tool_choice.tools: give objects with type and name", "tool_choice.tools"
            )
    if not found:
        raise InvalidRequest(f"tool_choice.tools: no tool is named {name[:64]!r}", "tool_choice")
    yield from found


def _add(
    tools: ResponseTools, given: dict[str, Any], where: str, namespace: str | None
) -> dict[str, Any]:
    """Add a function or a custom tool. Answers how it is shown."""
    tool: NamedTool | CustomTool
    if given.get("type") == "custom":
        tool = _parsed(CustomTool, given, where)
        shown = tool.model_dump(exclude={"parameters", "strict"}, exclude_none=True)
        function = _as_function(tools, tool, where)
    else:
        function = tool = _parsed(NamedTool, given, where)
        shown = {"type": "function", **tool.model_dump(exclude={"type"})}
    name = qualified(tool.name, namespace)
    if name in tools.names:
        raise InvalidRequest(f"{where}.name: several tools have the same name", "tools")
    tools.names[name] = ToolName(tool.type, tool.name, namespace)
    tools.functions.append(function.model_copy(update={"name": name}))
    return shown


def _as_function(tools: ResponseTools, tool: CustomTool, where: str) -> ToolFunction:
    """A custom tool as a function: calls are held to an expression; of other grammars the model
    only gets to know."""
    form, description, pattern = tool.format, tool.description or "", None
    if form is not None and form.type == "grammar":
        definition = form.definition
        if form.syntax is None or not definition or len(definition) > DEFINITION_CHARS_MAX:
            raise InvalidRequest(
                f"{where}.format: give syntax, and definition of 1 to {DEFINITION_CHARS_MAX} "
                "characters",
                f"{where}.format",
            )
        description = (
            f"{description}\n\nThe input matches this {form.syntax} grammar:\n{definition}"
        )
        if form.syntax == "regex":
            pattern = f"^(?:{definition})$"
        else:
            note = "the grammar is shown to the model; calls are not held to it"
            tools.warnings.append(Warned(f"{where}.format", "grammar_not_enforced", note))
    return ToolFunction(
        name=tool.name, description=description.strip(), parameters=parameters_of(pattern),
        strict=True,
    )  # fmt: skip


def _parsed(kind: type[Parsed], given: dict[str, Any], where: str) -> Parsed:
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        param = f"{where}.{param_name(first['loc'])}"
        raise InvalidRequest(f"{param}: {first['msg']}", param) from None
