"""What ``/openapi.json`` says of answers, and of request fields that have several types."""

from typing import Any, get_args

from services.frontend.core.observability.deployment_history import FIGURES
from services.frontend.core.replies.choice import PublicFinish
from shared.wire.messages import Task
from shared.wire.messages.advisories import AdvisoryLife

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
TEXT: Schema = {"type": "string", "minLength": 1}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
TRUE_OR_FALSE: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
TOKEN: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}


def constant(value: str) -> Schema:
    """One text and no other."""
    return {"type": "string", "const": value}


def array(items: Schema, at_least: int = 0) -> Schema:
    """A list."""
    return {"type": "array", "items": items, "minItems": at_least}


def any_of(*schemas: Schema) -> Schema:
    """One of several."""
    return {"anyOf": list(schemas)}


def nullable(schema: Schema) -> Schema:
    """It, or null."""
    return any_of(schema, {"type": "null"})


def record(optional: dict[str, Schema] | None = None, /, **fields: Schema) -> Schema:
    """An object with these members, and maybe the optional ones."""
    return {"type": "object", "required": list(fields), "properties": fields | (optional or {})}


def answers(schema: Schema, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """`responses` of an endpoint that answers with JSON."""
    return {
        status: {"description": "The answer", "content": {"application/json": {"schema": schema}}}
    }


def only_with(name: str, other: str, value: Schema | None = None) -> Schema:
    """A rule: a field, or this value of it, has a meaning only if another is true."""
    value = value or {"not": {"enum": [None, 0]}}
    return {
        "if": {"required": [name], "properties": {name: value}},
        "then": {"required": [other], "properties": {other: {"const": True}}},
    }


def one_group(*groups: tuple[str, ...]) -> Schema:
    """A rule: the fields of exactly one of these groups are given."""
    names = {name for group in groups for name in group}
    return {
        "oneOf": [
            {
                "required": list(group),
                "properties": {
                    name: {"not": {"type": "null"}} if name in group else {"type": "null"}
                    for name in sorted(names)
                },
            }
            for group in groups
        ]
    }


# What fields of several types may hold.
STRINGS = any_of(TEXT, array(TEXT, 1))
TOKENS = array(TOKEN, 1)
TEXTS_OR_TOKENS = any_of(TEXT, TOKENS, array(any_of(TEXT, TOKENS), 1))
_TEXT_PART = record(type=constant("text"), text=STRING)
_IMAGE_URL = any_of(STRING, record(url=STRING))
IMAGE = record(type=constant("image_url"), image_url=_IMAGE_URL)
_CONTENT = any_of(STRING, array(_TEXT_PART))
_ASKED = any_of(STRING, array(any_of(_TEXT_PART, IMAGE)))
_SAID = any_of(STRING, array(any_of(_TEXT_PART, record(type=constant("refusal"), refusal=STRING))))
_OTHERS: Schema = {"enum": ["system", "developer", "tool"]}
_CALL = record(
    {"index": COUNT}, id=STRING, type=constant("function"),
    function=record(name=STRING, arguments=STRING),
)  # fmt: skip
MESSAGE = any_of(
    record(role=constant("user"), content=_ASKED),
    record({"tool_call_id": STRING}, role=_OTHERS, content=_CONTENT),
    record(
        {
            "content": nullable(_SAID),
            "refusal": nullable(STRING),
            "reasoning_content": nullable(STRING),
            "tool_calls": nullable(array(_CALL)),
        },
        role=constant("assistant"),
    ),
)
STOP: Schema = any_of(
    {"type": "string", "minLength": 1, "maxLength": 512},
    {
        "type": "array",
        "items": {"type": "string", "minLength": 1, "maxLength": 512},
        "maxItems": 16,
    },
    {"type": "null"},
)
RESPONSE_FORMAT = any_of(
    record(type={"enum": ["text", "json_object"]}),
    record(type=constant("json_schema"), json_schema=record(schema={"type": "object"})),
)
JSON_SCHEMA = any_of({"type": "object"}, TRUE_OR_FALSE, TEXT, {"type": "null"})
CHOICES = nullable(array(TEXT, 1))
TOOL_CHOICE = any_of(
    {"enum": ["auto", "none", "required", None]},
    record(type=constant("function"), function=record(name=TEXT)),
)
DOCUMENT = any_of(TEXT, record(text=TEXT))

# Answers.
_USAGE_FIELDS = {"prompt_tokens": COUNT, "total_tokens": COUNT}
_USAGE = record(
    {"completion_tokens_details": record(reasoning_tokens=COUNT)},
    **_USAGE_FIELDS,
    completion_tokens=COUNT,
    prompt_tokens_details=record(
        {"cached_tokens_details": {"type": "object", "additionalProperties": COUNT}},
        cached_tokens=COUNT,
        cache_write_tokens=COUNT,
    ),
)
_FINISH: Schema = {"enum": list(get_args(PublicFinish))}
_TOKEN_LOGPROB = {"token": STRING, "logprob": NUMBER, "bytes": array(COUNT)}
TOKENS_LOGPROBS = array(record(**_TOKEN_LOGPROB, top_logprobs=array(record(**_TOKEN_LOGPROB))))
_CHAT_LOGPROBS = record(content=TOKENS_LOGPROBS, refusal={"type": "null"})
_TEXT_LOGPROBS = record(
    text_offset=array(COUNT),
    token_logprobs=array(nullable(NUMBER)),
    tokens=array(STRING),
    top_logprobs=array(nullable({"type": "object", "additionalProperties": NUMBER})),
)
_PROMPT_LOGPROBS = array(
    nullable(
        {
            "type": "object",
            "additionalProperties": record(
                logprob=NUMBER, rank=nullable(COUNT), decoded_token=STRING
            ),
        }
    )
)
_IDS = {"token_ids": array(COUNT), "prompt_token_ids": array(COUNT)}
_HEAD = {"id": STRING, "created": INTEGER, "model": STRING}
CHAT = record(
    {"prompt_token_ids": array(COUNT), "prompt_logprobs": _PROMPT_LOGPROBS},
    **_HEAD,
    object=constant("chat.completion"),
    choices=array(
        record(
            {"token_ids": array(COUNT)},
            index=COUNT,
            message=record(
                {"tool_calls": array(_CALL, 1), "reasoning_content": nullable(STRING)},
                role=constant("assistant"), content=nullable(STRING), refusal={"type": "null"},
            ),
            logprobs=nullable(_CHAT_LOGPROBS),
            finish_reason={"enum": [*get_args(PublicFinish), "tool_calls"]},
        )
    ),
    usage=_USAGE,
)  # fmt: skip
ANY_OBJECT: Schema = {"type": "object"}
DEPLOYMENT = record(
    at=NUMBER,
    window_s=NUMBER,
    services=array(record(service=STRING, name=STRING, pid=INTEGER, state=STRING)),
    models=array(STRING),
    hosts=array(ANY_OBJECT),
    workers=array(ANY_OBJECT),
    turns=record(running=COUNT, waiting=COUNT, placed=COUNT, expected=COUNT),
    sessions=COUNT,
    tiers=ANY_OBJECT,
    rates={"type": "object", "additionalProperties": NUMBER},
    cached_share=nullable(NUMBER),
    latency_ms=ANY_OBJECT,
    placements={"type": "object", "additionalProperties": NUMBER},
    staged_pages={"type": "object", "additionalProperties": NUMBER},
    peer_bytes={"type": "object", "additionalProperties": NUMBER},
    advisories=ANY_OBJECT,
    batches=array(ANY_OBJECT),
    windows=array(ANY_OBJECT),
    adapters=record(known=COUNT, running=array(STRING), waiting=array(STRING)),
    scaling={"type": "object", "additionalProperties": NUMBER},
)
_COLUMN = array(nullable(NUMBER))
DEPLOYMENT_HISTORY = record(
    step_s=NUMBER, at=array(NUMBER), **dict.fromkeys(FIGURES, _COLUMN)
)  # fmt: skip
COMPLETION = record(
    **_HEAD,
    object=constant("text_completion"),
    choices=array(
        record(
            {**_IDS, "prompt_logprobs": _PROMPT_LOGPROBS},
            index=COUNT, text=STRING, logprobs=nullable(_TEXT_LOGPROBS), finish_reason=_FINISH,
        )
    ),
    usage=_USAGE,
)  # fmt: skip


def _listed(usage: dict[str, Schema], **entry: Schema) -> Schema:
    data = array(record(index=COUNT, **entry))
    return record(**_HEAD, object=constant("list"), data=data, usage=record(**usage))


_VECTOR = any_of(array(NUMBER), STRING)
EMBEDDINGS = _listed(_USAGE_FIELDS, object=constant("embedding"), embedding=_VECTOR)
POOLING = _listed(_USAGE_FIELDS, object=constant("pooling"), data=_VECTOR)
SCORES = _listed(_USAGE_FIELDS, object=constant("score"), score=NUMBER)
CLASSES = _listed(
    {**_USAGE_FIELDS, "completion_tokens": COUNT},
    label=nullable(STRING), probs=array(NUMBER), num_classes=COUNT,
)  # fmt: skip
COHERE_EMBEDDINGS = record(
    id=STRING,
    response_type=constant("embeddings_by_type"),
    embeddings=record({"float": array(array(NUMBER)), "base64": array(STRING)}),
    texts=array(STRING),
    meta=record(api_version=record(version=constant("2")), billed_units=record(input_tokens=COUNT)),
)
RANKING = record(
    id=STRING,
    model=STRING,
    usage=record(**_USAGE_FIELDS),
    results=array(record({"document": record(text=STRING)}, index=COUNT, relevance_score=NUMBER)),
)
MODEL = record(
    {"modality": {"enum": ["text", "image"]}, "slo_ms": NUMBER},
    id=STRING,
    object=constant("model"),
    created=INTEGER,
    owned_by=STRING,
    root=STRING,
    parent=nullable(STRING),
    max_model_len=nullable(COUNT),
    task={"enum": ["generate", *get_args(Task)]},
)
MODELS = record(object=constant("list"), data=array(MODEL))
ADAPTER = record(
    id=STRING, object=constant("adapter"), created=INTEGER, tenant=nullable(STRING), parent=STRING,
    root=STRING, adapter_hash=STRING, lora_rank=COUNT,
    ranks={"type": "object", "additionalProperties": COUNT},
    num_bytes=COUNT, image_bytes=COUNT, revision=COUNT, warnings=array(STRING),
)  # fmt: skip
ADAPTERS = record(object=constant("list"), data=array(ADAPTER))
ADAPTER_DELETED = record(id=STRING, object=constant("adapter.deleted"), deleted=TRUE_OR_FALSE)
_FILE: Schema = {"type": "string", "format": "binary"}
ADAPTER_FORM: Schema = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": record(
                    {
                        "base_model_name": TEXT,
                        "load_inplace": {"enum": ["true", "false"]},
                        "shared": {"enum": ["true", "false"]},
                        "tenant": TEXT,
                    },
                    adapter_config=_FILE,
                    adapter_model=_FILE,
                )
            }
        },
    }
}
PLAIN_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"description": "That it is done", "content": {"text/plain": {"schema": STRING}}}
}
SESSION = record(
    id=STRING, object=constant("session"), model=STRING, num_tokens=COUNT, num_blocks=COUNT,
    num_turns=COUNT, last_used=NUMBER, expires=NUMBER,
)  # fmt: skip
SESSION_DELETED = record(
    id=STRING, object=constant("session.deleted"), deleted=TRUE_OR_FALSE, num_blocks=COUNT
)
ADVISORY = record(
    session_id=STRING, state={"enum": list(get_args(AdvisoryLife))}, tenant=STRING,
    model_id=nullable(STRING), worker_id=nullable(STRING), priority=INTEGER, num_merged=COUNT,
    created=NUMBER, expires=NUMBER, agent=STRING, workflow_id=STRING, chance=NUMBER,
    acted_on=TRUE_OR_FALSE, why=STRING,
)  # fmt: skip
TOKENIZED = record(
    count=COUNT, max_model_len=COUNT, tokens=array(COUNT), token_strs=nullable(array(STRING))
)
DETOKENIZED = record(prompt=STRING)
VERSION = record(version=STRING)
