"""Request bodies: what is read, with ranges. Types are strict: a number in quotes is no number.

What becomes of all other fields stands in `fields`.
"""

from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from services.frontend.api.fields import Endpoint, check, unsupported
from services.frontend.api.kv_hints import KvHints, wishes_of
from services.frontend.api.schemas import (
    CHOICES,
    JSON_SCHEMA,
    MESSAGE,
    NAMED_TOOL_CHOICE,
    RESPONSE_FORMAT,
    RESPONSE_INPUT,
    STOP,
    TEXT_FORMAT,
    TEXTS_OR_TOKENS,
    TOKEN,
    TOOL_CHOICE,
    Schema,
    array,
    one_group,
    only_with,
)
from services.frontend.http.request import Origin
from shared.errors import InvalidRequest
from shared.expiry import EXPIRY_S_MAX
from shared.ids import SessionId
from shared.messages import ADVISORY_PRIORITY, AgentRef
from shared.sampling import LOGPROBS_MAX, TOKEN_IDS_MAX

B = TypeVar("B", bound="Body")

ID_CHARS_MAX = 256
CHOICES_MAX = 128
PROMPTS_MAX = 1024
MESSAGES_MAX = 8192
STOPS_MAX = 16
INCLUDED_MAX = 16
TOOLS_MAX = 128
TOOL_NAME_CHARS_MAX = 64
TOOL_NAME = r"^[a-zA-Z0-9_.-]+$"
STOP_CHARS_MAX = 512
ADVISORY_PRIORITY_MAX = 9
INT64_MAX = 2**63 - 1
RESERVED = ("tool:", "#")  # before names that the tracker gives
NO_CONTROLS = r"^[^\x00-\x1f\x7f]*$"  # no path of a URL would match an id with a line break


def _whole(value: Any) -> Any:
    """To JSON 1.0 is an integer too."""
    return int(value) if type(value) is float and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
Included = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Id = Annotated[str, Field(min_length=1, max_length=ID_CHARS_MAX, pattern=NO_CONTROLS)]
Name = Annotated[str, Field(max_length=ID_CHARS_MAX)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1), WHOLE]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1), WHOLE]
_CUT = {"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}]}
Cut = Annotated[int, Field(ge=-1, le=2**31 - 1), WHOLE, WithJsonSchema(_CUT)]
Messages = Annotated[
    list[dict[str, Any]],
    Field(min_length=1, max_length=MESSAGES_MAX, fail_fast=True),
    WithJsonSchema({"type": "array", "items": MESSAGE, "minItems": 1, "maxItems": MESSAGES_MAX}),
]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
Bias = Annotated[Finite, Field(ge=-100, le=100)]


def _few(value: Any) -> Any:
    """Each wrong one would be reported, which takes long if they are many."""
    if isinstance(value, dict) and len(value) > TOKEN_IDS_MAX:
        raise ValueError(f"more than {TOKEN_IDS_MAX} entries")
    return value


Biases = Annotated[
    dict[str, Bias],
    BeforeValidator(_few),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]{1,12}$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
            "maxProperties": TOKEN_IDS_MAX,
        }
    ),
]


class Body(BaseModel):
    """Base of every body. Other fields than its own are kept only to be looked up by `parse`.

    Attributes:
        endpoint: whose fields these are.
        rules: of its JSON schema, on several fields.
    """

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())
    endpoint: ClassVar[Endpoint]
    rules: ClassVar[Schema] = {}


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Streamable(Body):
    """What is answered with generated text."""

    stream: bool | None = None


class Sampled(Streamable):
    """What all of them share."""

    model: Id | None = None
    adapter_id: Id | None = None
    temperature: Annotated[Finite, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1), WHOLE] | None = None
    min_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Finite, Field(gt=0, le=10)] | None = None
    presence_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    logit_bias: Biases | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=INT64_MAX), WHOLE] | None = None
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1), WHOLE] | None = None
    cache_salt: Annotated[str, Field(max_length=ID_CHARS_MAX)] | None = None
    session_id: Id | None = None
    kv_expiry_s: Annotated[int, Field(ge=1, le=EXPIRY_S_MAX), WHOLE] | None = None
    agent: Id | None = None
    workflow_id: Id | None = None
    kv_hints: KvHints | None = None


class Generate(Sampled):
    """What chat and completions share."""

    n: Annotated[int, Field(ge=1, le=CHOICES_MAX), WHOLE] | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    stop: Annotated[Any, WithJsonSchema(STOP)] = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=256, fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    tenant: Id | None = None  # read on NATS only
    best_of: Annotated[int, Field(ge=1), WHOLE] | None = None
    allowed_token_ids: (
        Annotated[list[TokenId], Field(max_length=TOKEN_IDS_MAX, fail_fast=True)] | None
    ) = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAX), WHOLE] | None = None
    truncate_prompt_tokens: Cut | None = None
    truncation_side: Any = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_cached_tokens_details: bool | None = None
    response_format: Annotated[dict[str, Any], WithJsonSchema(RESPONSE_FORMAT)] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: Annotated[Any, WithJsonSchema(JSON_SCHEMA)] = None
    guided_regex: str | None = None
    guided_choice: Annotated[Any, WithJsonSchema(CHOICES)] = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    json_schema: Annotated[Any, WithJsonSchema(JSON_SCHEMA)] = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None


class ToolFunction(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    name: Annotated[str, Field(min_length=1, max_length=TOOL_NAME_CHARS_MAX, pattern=TOOL_NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    type: Literal["function"]
    function: ToolFunction


Tools = Annotated[list[Tool], Field(max_length=TOOLS_MAX, fail_fast=True)]


class NamedTool(ToolFunction):
    """A function as the Responses API writes it."""

    type: Literal["function"]


class Reasoning(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    effort: Effort | None = None


class ChatBody(Generate):
    """``POST /v1/chat/completions``."""

    endpoint: ClassVar[Endpoint] = "chat"
    rules: ClassVar[Schema] = {
        "allOf": [only_with("stream_options", "stream"), only_with("top_logprobs", "logprobs")]
    }
    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1), WHOLE] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1), WHOLE] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAX), WHOLE] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    tools: Tools | None = None
    tool_choice: Annotated[Any, WithJsonSchema(TOOL_CHOICE)] = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None


class ResponsesBody(Sampled):
    """``POST /v1/responses``."""

    endpoint: ClassVar[Endpoint] = "responses"
    input: Annotated[Any, WithJsonSchema(RESPONSE_INPUT)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=2**31 - 1), WHOLE] | None = None
    stop: Annotated[Any, WithJsonSchema(STOP)] = None
    tools: Annotated[list[NamedTool], Field(max_length=TOOLS_MAX, fail_fast=True)] | None = None
    tool_choice: Annotated[Any, WithJsonSchema(NAMED_TOOL_CHOICE)] = None
    parallel_tool_calls: bool | None = None
    text: Annotated[dict[str, Any], WithJsonSchema(TEXT_FORMAT)] | None = None
    truncation: Any = None
    metadata: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning: Reasoning | None = None
    previous_response_id: Id | None = None
    store: bool | None = None
    background: bool | None = None
    include: Annotated[list[Included], Field(max_length=INCLUDED_MAX, fail_fast=True)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAX), WHOLE] | None = None

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.top_logprobs) or "message.output_text.logprobs" in (self.include or ())


class CompletionBody(Generate):
    """``POST /v1/completions``."""

    endpoint: ClassVar[Endpoint] = "completions"
    rules: ClassVar[Schema] = {
        "allOf": [
            only_with("stream_options", "stream"),
            only_with("max_tokens", "echo", {"const": 0}),
        ]
    }
    prompt: Annotated[Any, WithJsonSchema(TEXTS_OR_TOKENS)]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAX), WHOLE] | None = None


class TokenizeBody(Body):
    """``POST /tokenize``: a prompt, or a chat."""

    endpoint: ClassVar[Endpoint] = "tokenize"
    rules: ClassVar[Schema] = one_group(("prompt",), ("messages",))
    model: Id | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    """``POST /detokenize``."""

    endpoint: ClassVar[Endpoint] = "detokenize"
    model: Id | None = None
    tokens: Annotated[list[Any], WithJsonSchema(array(TOKEN))]


class LoadAdapterBody(Body):
    """``POST /v1/load_lora_adapter``."""

    endpoint: ClassVar[Endpoint] = "load_lora_adapter"
    lora_name: Id | None = None
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    load_inplace: bool | None = None
    base_model_name: Id | None = None
    shared: bool | None = None
    tenant: Id | None = None


class UnloadAdapterBody(Body):
    """``POST /v1/unload_lora_adapter``."""

    endpoint: ClassVar[Endpoint] = "unload_lora_adapter"
    lora_name: Id | None = None
    shared: bool | None = None
    tenant: Id | None = None


class AdvisoryBody(Body):
    """``POST /v1/advisories``; `model` is taken for `model_id`, as clients of chat know it."""

    endpoint: ClassVar[Endpoint] = "advisories"
    session_id: Id
    model_id: Id | None = None
    model: Id | None = None
    expected_arrival: Annotated[Finite, Field(ge=0, le=86_400)] | None = None
    ordered: bool = False
    agent: Name | None = None
    workflow_id: Name | None = None
    ttl_ms: Annotated[int, Field(ge=1, le=86_400_000), WHOLE] | None = None
    priority: Annotated[int, Field(ge=0, le=ADVISORY_PRIORITY_MAX), WHOLE] = ADVISORY_PRIORITY


def parse(kind: type[B], data: bytes) -> B:
    """A body from its JSON.

    Raises:
        InvalidRequest: malformed, or a field is missing, of the wrong type, out of range, or asks
            for what is not there.
    """
    try:
        body = kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        param = param_name(first["loc"])
        message = f"{param}: {first['msg']}" if param else f"the body: {first['msg']}"
        raise InvalidRequest(message, param or None) from None
    check(kind.endpoint, {**body.__dict__, **(body.model_extra or {})})
    return body


def token_list(value: Any) -> list[int] | None:
    """A list of nothing but tokens, or None.

    >>> token_list([1, 2.0]), token_list([1, -1]), token_list("a")
    ([1, 2], None, None)
    """
    if not isinstance(value, list):
        return None
    tokens = value if set(map(type, value)) == {int} else [_whole(v) for v in value]
    if not set(map(type, tokens)) <= {int}:
        return None
    return tokens if not tokens or (min(tokens) >= 0 and max(tokens) < 2**31) else None


def param_name(loc: tuple[int | str, ...]) -> str:
    """A place in a body as its sender would write it.

    >>> param_name(("messages", 0, "role"))
    'messages[0].role'
    """
    name = ""
    for part in loc:
        if isinstance(part, int):
            name += f"[{part}]"
        else:
            name += f".{part}" if name else part
    return name


def check_options(body: Generate) -> None:
    """What no field says alone.

    Raises:
        InvalidRequest: fields that contradict each other.
    """
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise unsupported("best_of", "only best_of = n is")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options: only with stream = true", "stream_options")
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequest("prompt_logprobs: not with stream = true", "prompt_logprobs")
    wishes_of(body.kv_hints, None)


def stop_strings(value: Any) -> list[str]:
    """The field `stop`: a string or a list of strings.

    Raises:
        InvalidRequest: something else, an empty string, too many or too long.
    """
    if value is None:
        return []
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise InvalidRequest("stop: give a string or a list of strings", "stop")
    if len(stops) > STOPS_MAX or any(not 1 <= len(stop) <= STOP_CHARS_MAX for stop in stops):
        raise InvalidRequest(
            f"stop: give at most {STOPS_MAX} strings of 1 to {STOP_CHARS_MAX} characters", "stop"
        )
    return stops


def session_of(body: Sampled, origin: Origin) -> SessionId | None:
    """The session a request belongs to: the body's, else the header's."""
    return SessionId(body.session_id) if body.session_id else origin.session_id


def agent_of(body: Generate, origin: Origin) -> AgentRef | None:
    """Whose turn a request is in which workflow, by the body, else by the headers.

    Raises:
        InvalidRequest: it names only one of them, or an agent as tools and places are named.
    """
    agent, workflow_id = body.agent or origin.agent, body.workflow_id or origin.workflow_id
    if agent is None and workflow_id is None:
        return None
    if agent is None or workflow_id is None:
        raise InvalidRequest("agent and workflow_id: give both", "agent")
    if agent.startswith(RESERVED):
        raise InvalidRequest(f"agent: may not begin with {' or '.join(RESERVED)}", "agent")
    return AgentRef(agent=agent, workflow_id=workflow_id)
