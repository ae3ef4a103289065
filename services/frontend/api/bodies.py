"""Request bodies: what is read, with ranges; what is known but not supported, refused by name.

Fields that nobody knows are ignored. Types are strict: a number in quotes is no number.
"""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.frontend.request import Origin
from shared.errors import InvalidRequest
from shared.ids import SessionId

B = TypeVar("B", bound="Body")

ID_CHARS_MAX = 256
CHOICES_MAX = 128
PROMPTS_MAX = 1024
STOPS_MAX = 16
STOP_CHARS_MAX = 512
LOGPROBS_MAX = 20
INT64_MAX = 2**63 - 1

Finite = Annotated[float, Field(allow_inf_nan=False)]
Id = Annotated[str, Field(min_length=1, max_length=ID_CHARS_MAX)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]


class Body(BaseModel):
    """Base of every body."""

    model_config = ConfigDict(extra="ignore", strict=True, protected_namespaces=())


class StreamOptions(Body):
    include_usage: bool | None = None


class Generate(Body):
    """What chat and completions share."""

    model: Id
    n: Annotated[int, Field(ge=1, le=CHOICES_MAX)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    temperature: Annotated[Finite, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Finite, Field(gt=0, le=10)] | None = None
    presence_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[Finite, Field(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=INT64_MAX)] | None = None
    stop: Any = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=256)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    cache_salt: Annotated[str, Field(max_length=ID_CHARS_MAX)] | None = None
    session_id: Id | None = None
    tenant: Id | None = None  # read on NATS only
    # Known to others, not supported here: refused, see `refuse_unsupported`.
    truncate_prompt_tokens: Any = None
    use_beam_search: Any = None
    best_of: Any = None
    length_penalty: Any = None
    prompt_logprobs: Any = None
    bad_words: Any = None
    allowed_token_ids: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None
    response_format: Any = None
    logits_processors: Any = None
    kv_transfer_params: Any = None


class ChatBody(Generate):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=65_536)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAX)] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: Any = None
    echo: Any = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    modalities: Any = None
    prediction: Any = None
    web_search_options: Any = None
    chat_template: Any = None
    documents: Any = None
    mm_processor_kwargs: Any = None


class CompletionBody(Generate):
    """``POST /v1/completions``."""

    prompt: Any
    echo: bool | None = None
    suffix: Any = None
    logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAX)] | None = None
    prompt_embeds: Any = None


class TokenizeBody(Body):
    """``POST /tokenize``: a prompt, or a chat."""

    model: Id | None = None
    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    """``POST /detokenize``."""

    model: Id | None = None
    tokens: list[TokenId]


class AdvisoryBody(Body):
    """``POST /v1/advisories``; `model` is taken for `model_id`, as clients of chat know it."""

    session_id: Id
    model_id: Id | None = None
    model: Id | None = None
    expected_arrival: Annotated[Finite, Field(ge=0, le=86_400)] | None = None
    ordered: bool = False
    priority: Annotated[int, Field(ge=0, le=9)] = 1


# The values of unsupported fields that mean the same as leaving them out.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "logits_processors": ([],),
    "response_format": ({"type": "text"},),
    "continue_final_message": (False,),
    "echo": (False,),
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
    "documents": ([],),
    "suffix": ("",),
}
UNSUPPORTED = (
    "truncate_prompt_tokens", "use_beam_search", "length_penalty", "prompt_logprobs", "bad_words",
    "allowed_token_ids", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    "structured_outputs", "response_format", "logits_processors", "kv_transfer_params",
)  # fmt: skip
UNSUPPORTED_CHAT = (
    "continue_final_message", "echo", "tools", "tool_choice", "functions", "function_call",
    "audio", "modalities", "prediction", "web_search_options", "chat_template", "documents",
    "mm_processor_kwargs",
)  # fmt: skip
UNSUPPORTED_COMPLETION = ("suffix", "prompt_embeds")


def parse(kind: type[B], data: bytes) -> B:
    """A body from its JSON.

    Raises:
        InvalidRequest: malformed, or a field is missing, of the wrong type or out of range.
    """
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        param = param_name(first["loc"])
        message = f"{param}: {first['msg']}" if param else f"the body: {first['msg']}"
        raise InvalidRequest(message, param or None) from None


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


def refuse_unsupported(body: Generate) -> None:
    """Say no to what would change the answer and is not there.

    Raises:
        InvalidRequest: names the field.
    """
    others = UNSUPPORTED_CHAT if isinstance(body, ChatBody) else UNSUPPORTED_COMPLETION
    for name in body.model_fields_set.intersection(UNSUPPORTED + others):
        value = getattr(body, name)
        if value is not None and value not in HARMLESS.get(name, ()):
            raise InvalidRequest(
                f"{name}: this value is not supported", name, code="unsupported_value"
            )
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise InvalidRequest("best_of: only best_of = n is supported", "best_of")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options: only with stream = true", "stream_options")


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


def session_of(body: Generate, origin: Origin) -> SessionId | None:
    """The session a request belongs to: the body's, else the header's."""
    return SessionId(body.session_id) if body.session_id else origin.session_id


ROLES = ("system", "developer", "user", "assistant", "tool")


def chat_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as chat templates take them: text content only, roles they know.

    Raises:
        InvalidRequest: names the message and what is wrong with it.
    """
    return [_message(message, f"messages[{at}]") for at, message in enumerate(messages)]


def _message(message: dict[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequest(f"{where}.role: give one of {', '.join(ROLES)}", f"{where}.role")
    for name in ("tool_calls", "function_call", "audio"):
        if message.get(name):
            raise InvalidRequest(
                f"{where}.{name}: not supported", f"{where}.{name}", code="unsupported_value"
            )
    known = {"role": "system" if role == "developer" else role}
    if isinstance(message.get("name"), str):
        known["name"] = message["name"]
    content = message.get("content")
    if content is None and role == "assistant":
        content = ""
    return known | {"content": _content(content, f"{where}.content")}


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"{where}: give a string or a list of text parts", where)
    texts = []
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise InvalidRequest(
                f"{where}[{at}]: only text parts are supported",
                f"{where}[{at}]",
                code="unsupported_value",
            )
        if not isinstance(part.get("text"), str):
            raise InvalidRequest(f"{where}[{at}].text: give a string", f"{where}[{at}].text")
        texts.append(part["text"])
    return "".join(texts)
