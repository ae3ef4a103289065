"""What ``/openapi.json`` says of the Messages API."""

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
from services.frontend.core.message_blocks import THOUGHTS

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
OUTPUT_CONFIG = record({"format": nullable(FORMAT)})
MESSAGE = record(
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
