"""What bodies are made of: types of fields with their ranges, and what `fields` says of a field.

Types are strict: a number in quotes is no number.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from services.frontend.api.bodies.schemas import MESSAGE, Schema
from shared.errors import InvalidRequest

Endpoint = Literal[
    "chat", "completions", "responses", "messages", "tokenize", "detokenize",
    "conversations", "conversation_items",
    "embeddings", "v2/embed", "pooling", "classify", "rerank", "score",
    "advisories", "load_lora_adapter", "unload_lora_adapter",
]  # fmt: skip
Stage = Literal["model", "template", "fit", "sampling", "grammar", "turn", "reply", "answer"]

ID_CHARS_MAX = 256
MESSAGES_MAX = 8192
NO_CONTROLS = r"^[^\x00-\x1f\x7f]*$"  # no path of a URL would match an id with a line break


def _whole(value: Any) -> Any:
    """To JSON 1.0 is an integer too."""
    return int(value) if type(value) is float and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
Finite = Annotated[float, Field(allow_inf_nan=False)]
Id = Annotated[str, Field(min_length=1, max_length=ID_CHARS_MAX, pattern=NO_CONTROLS)]
Name = Annotated[str, Field(max_length=ID_CHARS_MAX)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1), WHOLE]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1), WHOLE]
Length = Annotated[int, Field(ge=1, le=2**31 - 1), WHOLE]
_CUT = {"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}]}
Cut = Annotated[int, Field(ge=-1, le=2**31 - 1), WHOLE, WithJsonSchema(_CUT)]
Messages = Annotated[
    list[dict[str, Any]],
    Field(min_length=1, max_length=MESSAGES_MAX, fail_fast=True),
    WithJsonSchema({"type": "array", "items": MESSAGE, "minItems": 1, "maxItems": MESSAGES_MAX}),
]


@dataclass(frozen=True, slots=True)
class Note:
    """What the table of fields says of a field that works, beside its name and endpoints.

    Attributes:
        values: that are served; none: all that its type lets through. Null always passes.
        stage: that it goes to; None: that of the class which has the field.
        parts: whose fields are its members, if those are fields of the table too.
    """

    hint: str = ""
    values: tuple[Any, ...] = ()
    stage: Stage | None = None
    parts: type[BaseModel] | None = None


class Body(BaseModel):
    """Base of every body. Other fields than its own are kept only to be looked up by `parse`.

    Attributes:
        endpoint: whose fields these are.
        rules: of its JSON schema, on several fields.
        stage: of `prepare` that the class's own fields go to; None: each says it, or it is none.
    """

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())
    endpoint: ClassVar[Endpoint]
    rules: ClassVar[Schema] = {}
    stage: ClassVar[Stage | None] = None


def token_list(value: Any) -> list[int] | None:
    """A list of nothing but tokens, or None.

    >>> token_list([1, 2.0]), token_list([1, -1]), token_list("a")
    ([1, 2], None, None)
    """
    if not isinstance(value, list):
        return None
    tokens = value
    if set(map(type, value)) != {int}:
        tokens = [_whole(v) for v in value]
        if not set(map(type, tokens)) <= {int}:
            return None
    return tokens if not tokens or (min(tokens) >= 0 and max(tokens) < 2**31) else None


def unsupported(name: str, hint: str = "") -> InvalidRequest:
    """The error of a value that is known and not served."""
    message = f"{name}: this value is not supported" + (f"; {hint}" if hint else "")
    return InvalidRequest(message, name, code="unsupported_value")
