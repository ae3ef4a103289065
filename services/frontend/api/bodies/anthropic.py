"""Bodies of the Messages API. What their blocks hold is looked at by `core.message_blocks`."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from services.frontend.api.bodies.anthropic_schemas import FORMAT, MESSAGES, OUTPUT_CONFIG, SYSTEM
from services.frontend.api.bodies.base import MESSAGES_MAX, Endpoint, Id, Length, Note
from services.frontend.api.bodies.text import (
    STOP_CHARS_MAX,
    STOPS_MAX,
    TOOL_NAME,
    TOOL_NAME_CHARS_MAX,
    TOOLS_MAX,
    Sampled,
)

StopSequence = Annotated[str, Field(min_length=1, max_length=STOP_CHARS_MAX)]


def _own(kind: Any) -> Any:
    """Says what of a tool's type is wrong; before anything else that such a tool may lack."""
    if kind not in (None, "custom"):
        why = "{kind} is a tool of Anthropic's, which is not here; describe one of the type custom"
        raise PydanticCustomError("tool_type", why, {"kind": repr(str(kind)[:40])})
    return kind


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


class Thinking(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    type: Literal["enabled", "adaptive", "disabled"]
    display: Literal["summarized", "omitted"] | None = None


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
    thinking: Annotated[
        Thinking | None,
        Note("as far as the model's template reads enable_thinking", stage="template"),
    ] = None
    output_config: Annotated[
        Annotated[dict[str, Any], WithJsonSchema(OUTPUT_CONFIG)] | None,
        Note("its format: json_schema", stage="grammar"),
    ] = None
    output_format: Annotated[
        Annotated[dict[str, Any], WithJsonSchema(FORMAT)] | None,
        Note("the same as output_config.format", stage="grammar"),
    ] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, Note(stage="template")] = None


class MessagesBody(CountTokensBody):
    """``POST /v1/messages``."""

    max_tokens: Annotated[Length, Note(stage="fit")]
