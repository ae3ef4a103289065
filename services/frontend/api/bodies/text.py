"""Request bodies of text, tokens, adapters and advisories: what is read, with ranges.

A class with a stage has the fields that go there. What becomes of fields that no body has stands in
`fields`.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from services.frontend.api.bodies.base import (
    ID_CHARS_MAX,
    WHOLE,
    Body,
    Count,
    Cut,
    Endpoint,
    Finite,
    Id,
    Length,
    Messages,
    Name,
    Note,
    Stage,
    TokenId,
)
from services.frontend.api.bodies.kv_hints import KvHints
from services.frontend.api.bodies.schemas import (
    CHOICES,
    JSON_SCHEMA,
    RESPONSE_FORMAT,
    STOP,
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
from shared.wire.messages import ADVISORY_PRIORITY, AgentRef
from shared.wire.sampling import LOGPROBS_MAX, TOKEN_IDS_MAX

CHOICES_MAX = 128
PROMPTS_MAX = 1024
CHOICES_PER_REQUEST_MAX = 1024
STOPS_MAX = 16
TOOLS_MAX = 128
TOOL_NAME_CHARS_MAX = 64
TOOL_NAME = r"^[a-zA-Z0-9_.-]+$"
STOP_CHARS_MAX = 512
ADVISORY_PRIORITY_MAX = 9
INT64_MAX = 2**63 - 1
RESERVED = ("tool:", "#")  # before names that the tracker gives

Bias = Annotated[Finite, Field(ge=-100, le=100)]
SIDE_NOTE = Note(values=("left", "right"))
SCHEMA_NOTE = Note("a JSON schema, or its text")
RULES_NOTE = Note("rules in Lark's or llama.cpp's words")
CHOICE_NOTE = Note("auto, none, required, or a function by its name", stage="grammar")
ADVICE_NOTE = Note("advice, as far as the model's template reads it", stage="template")
EFFORT_NOTE = Note("its effort: advice, as far as the model's template reads it", stage="template")
THINKING_NOTE = Note(
    "advice, as far as the model's template reads enable_thinking", stage="template"
)
OWN_NOTE = Note("by administrators; else it is one's own")
Top = Annotated[int, Field(ge=0, le=LOGPROBS_MAX), WHOLE]


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


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Streamable(Body):
    """What is answered with generated text."""

    stage: ClassVar[Stage | None] = "answer"
    stream: bool | None = None


class ModelFields(Body):
    stage: ClassVar[Stage | None] = "model"
    model: Id | None = None
    adapter_id: Annotated[Id | None, Note("an adapter of the model; or name it as the model")] = (
        None
    )


class SamplingFields(Body):
    stage: ClassVar[Stage | None] = "sampling"
    temperature: Annotated[Finite, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1), WHOLE] | None = None
    min_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Finite, Field(gt=0, le=10)] | None = None
    presence_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    logit_bias: Biases | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=INT64_MAX), WHOLE] | None = None


class TurnFields(Body):
    stage: ClassVar[Stage | None] = "turn"
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1), WHOLE] | None = None
    cache_salt: Annotated[str, Field(max_length=ID_CHARS_MAX)] | None = None
    session_id: Id | None = None
    kv_expiry_s: Annotated[int, Field(ge=1, le=EXPIRY_S_MAX), WHOLE] | None = None
    agent: Id | None = None
    workflow_id: Id | None = None
    kv_hints: Annotated[
        KvHints | None, Note("fetch, retain, demote and release; the rest is ignored")
    ] = None


class Sampled(TurnFields, SamplingFields, ModelFields, Streamable):
    """What every API for text shares."""


class ChoiceFields(Body):
    """How tokens are chosen, in chat and completions alone."""

    stage: ClassVar[Stage | None] = "sampling"
    n: Annotated[int, Field(ge=1, le=CHOICES_MAX), WHOLE] | None = None
    best_of: Annotated[Annotated[int, Field(ge=1), WHOLE] | None, Note("only as many as n")] = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=256, fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    allowed_token_ids: (
        Annotated[list[TokenId], Field(max_length=TOKEN_IDS_MAX, fail_fast=True)] | None
    ) = None
    prompt_logprobs: Annotated[Top | None, Note("not in a stream")] = None


class FitFields(Body):
    stage: ClassVar[Stage | None] = "fit"
    max_tokens: Count | None = None
    truncate_prompt_tokens: Annotated[
        Cut | None, Note("the end is kept; truncation_side says otherwise")
    ] = None
    truncation_side: Annotated[Any, SIDE_NOTE] = None


class ReplyFields(Body):
    stage: ClassVar[Stage | None] = "reply"
    stop: Annotated[Any, WithJsonSchema(STOP)] = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None


class AnswerFields(Body):
    stage: ClassVar[Stage | None] = "answer"
    stream_options: Annotated[StreamOptions | None, Note(parts=StreamOptions)] = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_cached_tokens_details: bool | None = None


class StructureFields(Body):
    """What a reply is to look like, in the words of OpenAI, vLLM and SGLang."""

    stage: ClassVar[Stage | None] = "grammar"
    response_format: Annotated[
        Annotated[dict[str, Any], WithJsonSchema(RESPONSE_FORMAT)] | None,
        Note("text, json_object or json_schema"),
    ] = None
    structured_outputs: Annotated[
        dict[str, Any] | None,
        Note(
            "json, regex, choice, grammar, json_object, whitespace_pattern and"
            " disable_any_whitespace"
        ),
    ] = None
    guided_json: Annotated[Any, WithJsonSchema(JSON_SCHEMA), SCHEMA_NOTE] = None
    guided_regex: str | None = None
    guided_choice: Annotated[Any, WithJsonSchema(CHOICES)] = None
    guided_grammar: Annotated[str | None, RULES_NOTE] = None
    guided_whitespace_pattern: str | None = None
    json_schema: Annotated[Any, WithJsonSchema(JSON_SCHEMA), SCHEMA_NOTE] = None
    regex: str | None = None
    ebnf: Annotated[str | None, RULES_NOTE] = None
    grammar: Annotated[str | None, RULES_NOTE] = None


class Generate(StructureFields, AnswerFields, ReplyFields, FitFields, ChoiceFields, Sampled):
    """What chat and completions share."""

    add_special_tokens: Annotated[bool | None, Note(stage="fit")] = None
    tenant: Annotated[Id | None, Note("over NATS only", stage="turn")] = None


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


class Reasoning(BaseModel):
    """How much to think. Any level is taken: it advises, and may be one of a newer API."""

    model_config = ConfigDict(extra="ignore", strict=True)
    effort: str | None = None


class ThinkingSwitch(BaseModel):
    """Whether to think, as Anthropic and others write it: any type but `disabled` says yes."""

    model_config = ConfigDict(extra="ignore", strict=True)
    type: str

    @property
    def is_on(self) -> bool:
        return self.type != "disabled"


class TemplateFields(Body):
    stage: ClassVar[Stage | None] = "template"
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[Tools | None, Note("functions")] = None


class ChatBody(TemplateFields, Generate):
    """``POST /v1/chat/completions``."""

    endpoint: ClassVar[Endpoint] = "chat"
    rules: ClassVar[Schema] = {
        "allOf": [only_with("stream_options", "stream"), only_with("top_logprobs", "logprobs")]
    }
    messages: Annotated[Messages, Note(stage="template")]
    max_completion_tokens: Annotated[Length | None, Note(stage="fit")] = None
    max_tokens: Length | None = None
    logprobs: Annotated[bool | None, Note(stage="sampling")] = None
    top_logprobs: Annotated[Top | None, Note(stage="sampling")] = None
    tool_choice: Annotated[Any, WithJsonSchema(TOOL_CHOICE), CHOICE_NOTE] = None
    parallel_tool_calls: Annotated[bool | None, Note(stage="grammar")] = None
    reasoning_effort: Annotated[str | None, ADVICE_NOTE] = None
    verbosity: Annotated[str | None, ADVICE_NOTE] = None
    reasoning: Annotated[Reasoning | None, EFFORT_NOTE] = None
    thinking: Annotated[ThinkingSwitch | bool | None, THINKING_NOTE] = None
    enable_thinking: Annotated[bool | None, ADVICE_NOTE] = None
    include_reasoning: Annotated[bool | None, Note(stage="reply")] = None
    separate_reasoning: Annotated[bool | None, Note(stage="reply")] = None


class CompletionBody(Generate):
    """``POST /v1/completions``."""

    endpoint: ClassVar[Endpoint] = "completions"
    rules: ClassVar[Schema] = {
        "allOf": [
            only_with("stream_options", "stream"),
            only_with("max_tokens", "echo", {"const": 0}),
        ]
    }
    prompt: Annotated[Any, WithJsonSchema(TEXTS_OR_TOKENS), Note(stage="fit")]
    echo: Annotated[bool | None, Note(stage="answer")] = None
    logprobs: Annotated[Top | None, Note(stage="sampling")] = None


class TokenizeBody(TemplateFields):
    """``POST /tokenize``: a prompt, or a chat."""

    endpoint: ClassVar[Endpoint] = "tokenize"
    rules: ClassVar[Schema] = one_group(("prompt",), ("messages",))
    model: Annotated[Id | None, Note(stage="model")] = None
    prompt: Annotated[str | None, Note(stage="fit")] = None
    messages: Annotated[Messages | None, Note(stage="template")] = None
    add_special_tokens: Annotated[bool | None, Note(stage="fit")] = None
    return_token_strs: Annotated[bool | None, Note(stage="answer")] = None


class DetokenizeBody(Body):
    """``POST /detokenize``."""

    endpoint: ClassVar[Endpoint] = "detokenize"
    model: Annotated[Id | None, Note(stage="model")] = None
    tokens: Annotated[list[Any], WithJsonSchema(array(TOKEN)), Note(stage="fit")]


class AdapterBody(Body):
    """What loading and unloading share."""

    lora_name: Id | None = None
    shared: Annotated[bool | None, OWN_NOTE] = None
    tenant: Annotated[Id | None, OWN_NOTE] = None


class LoadAdapterBody(AdapterBody):
    """``POST /v1/load_lora_adapter``."""

    endpoint: ClassVar[Endpoint] = "load_lora_adapter"
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    load_inplace: bool | None = None
    base_model_name: Id | None = None


class UnloadAdapterBody(AdapterBody):
    """``POST /v1/unload_lora_adapter``."""

    endpoint: ClassVar[Endpoint] = "unload_lora_adapter"


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


def session_of(session_id: str | None, origin: Origin) -> SessionId | None:
    """The session a request belongs to: the body's, else the header's."""
    return SessionId(session_id) if session_id else origin.session_id


def agent_of(agent: str | None, workflow_id: str | None, origin: Origin) -> AgentRef | None:
    """Whose turn a request is in which workflow, by the body, else by the headers.

    Raises:
        InvalidRequest: it names only one of them, or an agent as tools and places are named.
    """
    agent, workflow_id = agent or origin.agent, workflow_id or origin.workflow_id
    if agent is None and workflow_id is None:
        return None
    if agent is None or workflow_id is None:
        raise InvalidRequest("agent and workflow_id: give both", "agent")
    if agent.startswith(RESERVED):
        raise InvalidRequest(f"agent: may not begin with {' or '.join(RESERVED)}", "agent")
    return AgentRef(agent=agent, workflow_id=workflow_id)
