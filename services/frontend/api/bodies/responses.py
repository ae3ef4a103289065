"""Bodies of the Responses API and of conversations, and what ``/openapi.json`` says of answers."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema

from services.frontend.api.bodies.base import Body, Endpoint, Id, Length, Note
from services.frontend.api.bodies.schemas import (
    ANY_OBJECT,
    COUNT,
    INTEGER,
    NUMBER,
    STOP,
    STRING,
    TEXT,
    TOKENS_LOGPROBS,
    TRUE_OR_FALSE,
    Schema,
    any_of,
    array,
    constant,
    nullable,
    record,
)
from services.frontend.api.bodies.text import (
    EFFORT_NOTE,
    TOOLS_MAX,
    Reasoning,
    Sampled,
    ToolFunction,
    Top,
)

INCLUDED_MAX = 16
METADATA_MAX = 16
METADATA_KEY_CHARS_MAX = 64
METADATA_CHARS_MAX = 512

LOGPROBS = "message.output_text.logprobs"
Included = Literal[
    "message.output_text.logprobs", "reasoning.encrypted_content",
    "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
    "code_interpreter_call.outputs", "computer_call_output.output.image_url",
    "message.input_image.image_url",
]  # fmt: skip

# What fields of several types may hold.
_TEXTS = {"enum": ["input_text", "output_text", "text"]}
_INPUT_TEXT = any_of(
    STRING,
    array(
        any_of(record(type=_TEXTS, text=STRING), record(type=constant("refusal"), refusal=STRING))
    ),
)
_ITEM = any_of(
    record(
        {"type": constant("message")},
        role={"enum": ["system", "developer", "user", "assistant"]},
        content=_INPUT_TEXT,
    ),
    record(
        {"namespace": nullable(STRING)},
        type=constant("function_call"), call_id=TEXT, name=STRING, arguments=STRING,
    ),
    record(type=constant("function_call_output"), call_id=TEXT, output=_INPUT_TEXT),
    record(
        {"namespace": nullable(STRING)},
        type=constant("custom_tool_call"), call_id=TEXT, name=STRING, input=STRING,
    ),
    record(type=constant("custom_tool_call_output"), call_id=TEXT, output=_INPUT_TEXT),
    record(type=constant("reasoning")),
    record(type=constant("compaction"), encrypted_content=STRING),
    record(type=constant("item_reference"), id=TEXT),
)  # fmt: skip
_INPUT = any_of(TEXT, array(_ITEM, 1))
_NAME: Schema = {"type": "string", "pattern": "^[a-zA-Z0-9_.-]{1,64}$"}
_FUNCTION_TOOL = record(
    {"description": nullable(STRING), "parameters": nullable(ANY_OBJECT)},
    type=constant("function"), name=_NAME,
)  # fmt: skip
_FORMAT = any_of(
    record(type=constant("text")),
    record(
        type=constant("grammar"), syntax={"enum": ["lark", "regex"]}, definition=TEXT,
    ),
)  # fmt: skip
_CUSTOM_TOOL = record(
    {"description": nullable(STRING), "format": nullable(_FORMAT)},
    type=constant("custom"), name=_NAME,
)  # fmt: skip
_TOOL = any_of(
    _FUNCTION_TOOL,
    _CUSTOM_TOOL,
    record(
        {"description": nullable(STRING)},
        type=constant("namespace"), name=_NAME, tools=array(any_of(_FUNCTION_TOOL, _CUSTOM_TOOL)),
    ),
    record(type={"enum": ["web_search", "file_search", "code_interpreter", "mcp"]}),
)  # fmt: skip
_TOOLS: Schema = {"type": "array", "items": _TOOL, "maxItems": TOOLS_MAX}
_TOOL_CHOICE = any_of(
    {"enum": ["auto", "none", "required", None]},
    record(type={"enum": ["function", "custom"]}, name=TEXT),
    record(
        type=constant("allowed_tools"), mode={"enum": ["auto", "required"]},
        tools=array(ANY_OBJECT, 1),
    ),
)  # fmt: skip
_TEXT_FORMAT = record(
    {
        "format": any_of(
            record(type={"enum": ["text", "json_object"]}),
            record(type=constant("json_schema"), name=STRING, schema={"type": "object"}),
        )
    }
)
_CONVERSATION = any_of(TEXT, record(id=TEXT), {"type": "null"})
_METADATA: Schema = {
    "type": "object",
    "propertyNames": {"maxLength": METADATA_KEY_CHARS_MAX},
    "additionalProperties": {"type": "string", "maxLength": METADATA_CHARS_MAX},
    "maxProperties": METADATA_MAX,
}
Metadata = Annotated[
    dict[
        Annotated[str, Field(max_length=METADATA_KEY_CHARS_MAX)],
        Annotated[str, Field(max_length=METADATA_CHARS_MAX)],
    ],
    Field(max_length=METADATA_MAX),
    WithJsonSchema(_METADATA),
]


class NamedTool(ToolFunction):
    """A function as the Responses API writes it."""

    type: Literal["function"]


class ResponsesBody(Sampled):
    """``POST /v1/responses``."""

    endpoint: ClassVar[Endpoint] = "responses"
    input: Annotated[Any, WithJsonSchema(_INPUT), Note(stage="template")]
    instructions: Annotated[str | None, Note(stage="template")] = None
    max_output_tokens: Annotated[Length | None, Note(stage="fit")] = None
    stop: Annotated[Any, WithJsonSchema(STOP), Note(stage="reply")] = None
    tools: Annotated[
        Annotated[
            list[dict[str, Any]],
            Field(max_length=TOOLS_MAX, fail_fast=True),
            WithJsonSchema(_TOOLS),
        ]
        | None,
        Note("function, custom and namespace; hosted ones are left out", stage="template"),
    ] = None
    tool_choice: Annotated[
        Any,
        WithJsonSchema(_TOOL_CHOICE),
        Note("auto, none, required, a tool by its name, or allowed_tools", stage="grammar"),
    ] = None
    parallel_tool_calls: Annotated[bool | None, Note(stage="grammar")] = None
    text: Annotated[
        Annotated[dict[str, Any], WithJsonSchema(_TEXT_FORMAT)] | None,
        Note("its format: text, json_object or json_schema", stage="grammar"),
    ] = None
    truncation: Annotated[Any, Note(values=("disabled", "auto"), stage="fit")] = None
    metadata: Annotated[dict[str, Any] | None, Note(stage="answer")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, Note(stage="template")] = None
    reasoning: Annotated[Reasoning | None, EFFORT_NOTE] = None
    previous_response_id: Annotated[
        Id | None, Note("of a response that was stored", stage="template")
    ] = None
    conversation: Annotated[
        Any, WithJsonSchema(_CONVERSATION), Note("its id, or an object with it", stage="template")
    ] = None
    store: Annotated[bool | None, Note(stage="answer")] = None
    background: Annotated[bool | None, Note("stored", stage="answer")] = None
    include: Annotated[
        Annotated[list[Included], Field(max_length=INCLUDED_MAX, fail_fast=True)] | None,
        Note("message.output_text.logprobs; the others add nothing", stage="answer"),
    ] = None
    top_logprobs: Annotated[Top | None, Note(stage="sampling")] = None

    @property
    def num_top(self) -> int | None:
        """Of log-probabilities; None: there are to be none."""
        is_wanted = bool(self.top_logprobs) or LOGPROBS in (self.include or ())
        return (self.top_logprobs or 0) if is_wanted else None


class ReadResponsesBody(ResponsesBody):
    """``POST /v1/responses/input_tokens`` and ``/v1/responses/compact``: what goes before may be
    all that there is."""

    input: Annotated[Any, WithJsonSchema(nullable(_INPUT)), Note(stage="template")] = None


class ConversationBody(Body):
    """``POST /v1/conversations``, and ``POST /v1/conversations/{id}``, which takes no items."""

    endpoint: ClassVar[Endpoint] = "conversations"
    metadata: Metadata | None = None
    items: Annotated[Any, WithJsonSchema(nullable(array(_ITEM)))] = None


class ConversationItemsBody(Body):
    """``POST /v1/conversations/{id}/items``."""

    endpoint: ClassVar[Endpoint] = "conversation_items"
    items: Annotated[Any, WithJsonSchema(array(_ITEM, 1))]


# Answers.
_CALL = {"id": STRING, "call_id": STRING, "name": STRING, "status": STRING}
_OUTPUT = any_of(
    record(
        type=constant("message"),
        id=STRING,
        role=constant("assistant"),
        status=STRING,
        content=array(
            record(
                type=constant("output_text"),
                text=STRING,
                annotations=array(STRING),
                logprobs=TOKENS_LOGPROBS,
            )
        ),
    ),
    record(
        type=constant("reasoning"),
        id=STRING,
        status=STRING,
        summary=array(STRING),
        content=array(record(type=constant("reasoning_text"), text=STRING)),
    ),
    record({"namespace": STRING}, type=constant("function_call"), **_CALL, arguments=STRING),
    record({"namespace": STRING}, type=constant("custom_tool_call"), **_CALL, input=STRING),
)
_USAGE = record(
    input_tokens=COUNT, output_tokens=COUNT, total_tokens=COUNT,
    input_tokens_details=record(cached_tokens=COUNT, cache_write_tokens=COUNT),
    output_tokens_details=record(reasoning_tokens=COUNT),
)  # fmt: skip
RESPONSE = record(
    {"warnings": array(record(code=STRING, message=STRING, param=STRING), 1)},
    id=STRING, object=constant("response"), created_at=INTEGER, model=STRING,
    status={"enum": ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]},
    background=TRUE_OR_FALSE,
    conversation=nullable(record(id=STRING)),
    error=nullable(record(code=STRING, message=STRING, reason=STRING)),
    incomplete_details=nullable(record(reason=STRING)),
    instructions=nullable(STRING),
    max_output_tokens=nullable(COUNT),
    metadata=ANY_OBJECT,
    output=array(_OUTPUT),
    parallel_tool_calls=TRUE_OR_FALSE,
    previous_response_id=nullable(STRING),
    reasoning=record(effort=nullable(STRING), summary={"type": "null"}),
    session_id=nullable(STRING),
    store=TRUE_OR_FALSE,
    temperature=NUMBER,
    text=ANY_OBJECT,
    tool_choice=any_of(STRING, ANY_OBJECT),
    tools=array(ANY_OBJECT),
    top_logprobs=COUNT,
    top_p=NUMBER,
    truncation=STRING,
    usage=nullable(_USAGE),
)  # fmt: skip
ITEMS = record(
    object=constant("list"), data=array(ANY_OBJECT), first_id=STRING, last_id=STRING,
    has_more=TRUE_OR_FALSE,
)  # fmt: skip
RESPONSE_DELETED = record(id=STRING, object=constant("response.deleted"), deleted=TRUE_OR_FALSE)
INPUT_TOKENS = record(object=constant("response.input_tokens"), input_tokens=COUNT)
COMPACTION = record(
    id=STRING, object=constant("response.compaction"), created_at=INTEGER,
    output=array(ANY_OBJECT, 1), usage=_USAGE,
)  # fmt: skip
CONVERSATION = record(
    id=STRING, object=constant("conversation"), created_at=INTEGER, metadata=ANY_OBJECT
)
CONVERSATION_DELETED = record(
    id=STRING, object=constant("conversation.deleted"), deleted=TRUE_OR_FALSE
)
