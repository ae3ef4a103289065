"""What other APIs for chats share: their requests become requests for a chat, and what is wrong
with those is told in their own words.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from services.frontend.api.bodies import ChatBody, Sampled, Tool, ToolFunction
from shared.errors import InvalidRequest


def chat_like(body: Sampled, **fields: Any) -> ChatBody:
    """A chat that is sampled and kept as `body` says, and has these fields."""
    shared = {name: getattr(body, name) for name in Sampled.model_fields}
    return ChatBody.model_construct(**shared | fields)


def as_tool(**fields: Any) -> Tool:
    """A function with these fields, as a chat's tool."""
    function = ToolFunction.model_construct(**fields)
    return Tool.model_construct(type="function", function=function)


def json_format(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A chat's `response_format`, from the field `name` that has a JSON schema.

    Raises:
        InvalidRequest: it has none.
    """
    schema = given.get("schema")
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{name}.schema: give a JSON schema", name)
    return {"type": "json_schema", "json_schema": {"schema": schema}}


@contextmanager
def told_as(words: Mapping[str, str]) -> Iterator[None]:
    """Errors of a chat's are raised with the names that its fields have here.

    Args:
        words: a chat's field, and what is called so here.
    """
    try:
        yield
    except InvalidRequest as error:
        field = (error.param or "").partition(".")[0].partition("[")[0]
        if (own := words.get(field)) is not None:
            error.param = own
            error.message = error.message.replace("response_format.json_schema", own).replace(
                f"{field}:", f"{own}:"
            )
        raise
