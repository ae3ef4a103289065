"""Bodies of the Messages API. What their blocks hold is looked at by `core.message_blocks`."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from services.frontend.api.bodies.base import MESSAGES_MAX, Endpoint, Id, Length, Note
from services.frontend.api.bodies.schemas import (
    COUNT,
    STRING,
    TEXT,
    TRUE_OR_FALSE,
    Schema,
    any_of,
    array,
    constant,
    nullable,
    record,
)
from services.frontend.api.bodies.text import (
    STOP_CHARS_MAX,
    STOPS_MAX,
    THINKING_NOTE,
    TOOL_NAME,
    TOOL_NAME_CHARS_MAX,
    TOOLS_MAX,
    Sampled,
    ThinkingSwitch,
)
from services.frontend.core.message_blocks import THOUGHTS

StopSequence = Annotated[str, Field(min_length=1, max_length=STOP_CHARS_MAX)]


def _own(kind: Any) -> Any:
    """Says what of a tool's type is wrong; before anything else that such a tool may lack."""
    if kind not in (None, "custom"):
        why = "{kind} is a tool of Anthropic's, which is not here; describe one of the type custom"
        raise PydanticCustomError("tool_type", why, {"kind": repr(str(kind)[:40])})
    return kind


STOP_REASONS = ("end_turn", "max_tokens", "stop_sequence", "tool_use")
_OBJECT: Schema = {"type": "object"}
_TEXT_BLOCK = record(type=constant("text"), text=STRING)
_TEXTS = any_of(STRING, array(_TEXT_BLOCK))
_TOOL_USE = record(type=constant("tool_use"), id=TEXT, name=TEXT, input=_OBJECT)
_TOOL_RESULT = record(
    {"content": _TEXTS, "is_error": TRUE_OR_FALSE},
    type=constant("tool_result"), tool_use_id=TEXT,
)  # fmt: skip
_THOUGHT = record(type={"enum": list(THOUGHTS)})
_ASKED = any_of(STRING, array(any_of(_TEXT_BLOCK, _TOOL_RESULT)))
_SAID = any_of(STRING, array(any_of(_TEXT_BLOCK, _TOOL_USE, _THOUGHT)))
MESSAGES = array(
    any_of(
        record(role=constant("user"), content=_ASKED),
        record(role=constant("assistant"), content=_SAID),
        record(role=constant("system"), content=_TEXTS),
    ),
    1,
)
SYSTEM = nullable(_TEXTS)
FORMAT = record(type=constant("json_schema"), schema=_OBJECT)
OUTPUT_CONFIG = record({"format": nullable(FORMAT), "effort": nullable(STRING)})
MESSAGE = record(
    {"context_management": record(applied_edits=array(_OBJECT))},
    id=STRING,
    type=constant("message"),
    role=constant("assistant"),
    model=STRING,
    content=array(
        any_of(
            _TEXT_BLOCK,
            _TOOL_USE,
            record(type=constant("thinking"), thinking=STRING, signature=STRING),
        )
    ),
    stop_reason={"enum": list(STOP_REASONS)},
    stop_sequence=nullable(STRING),
    usage=record(
        input_tokens=COUNT,
        cache_creation_input_tokens=COUNT,
        cache_read_input_tokens=COUNT,
        output_tokens=COUNT,
    ),
)
NUM_TOKENS = record(input_tokens=COUNT)


class ClientTool(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    type: Annotated[Literal["custom"] | None, BeforeValidator(_own)] = None
    name: Annotated[str, Field(min_length=1, max_length=TOOL_NAME_CHARS_MAX, pattern=TOOL_NAME)]
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None


class ToolChoice(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(ThinkingSwitch):
    display: str | None = None


class Thread(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    type: Literal["create", "continue"]


class CountTokensBody(Sampled):
    """``POST /v1/messages/count_tokens``: a message that is asked for, of whatever length."""

    endpoint: ClassVar[Endpoint] = "messages"
    model: Id
    messages: Annotated[
        list[dict[str, Any]],
        Field(min_length=1, max_length=MESSAGES_MAX, fail_fast=True),
        WithJsonSchema(MESSAGES | {"maxItems": MESSAGES_MAX}),
        Note(stage="template"),
    ]
    system: Annotated[Any, WithJsonSchema(SYSTEM), Note(stage="template")] = None
    max_tokens: Annotated[Length | None, Note(stage="fit")] = None
    stop_sequences: Annotated[
        Annotated[list[StopSequence], Field(max_length=STOPS_MAX, fail_fast=True)] | None,
        Note(stage="reply"),
    ] = None
    tools: Annotated[
        Annotated[list[ClientTool], Field(max_length=TOOLS_MAX, fail_fast=True)] | None,
        Note("one's own, of the type custom", stage="template"),
    ] = None
    tool_choice: Annotated[
        ToolChoice | None, Note("its type: auto, any, none, or tool with a name", stage="grammar")
    ] = None
    thinking: Annotated[Thinking | None, THINKING_NOTE] = None
    context_management: Annotated[
        dict[str, Any] | None, Note("advice: nothing is cleared", stage="answer")
    ] = None
    output_config: Annotated[
        Annotated[dict[str, Any], WithJsonSchema(OUTPUT_CONFIG)] | None,
        Note("its format: json_schema; its effort as reasoning_effort in a chat", stage="grammar"),
    ] = None
    output_format: Annotated[
        Annotated[dict[str, Any], WithJsonSchema(FORMAT)] | None,
        Note("the same as output_config.format", stage="grammar"),
    ] = None
    thread: Annotated[
        Thread | None,
        Note("create; nothing is held, so that continue is 404 thread_not_found", stage="template"),
    ] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, Note(stage="template")] = None


class MessagesBody(CountTokensBody):
    """``POST /v1/messages``."""

    max_tokens: Annotated[Length, Note(stage="fit")]
