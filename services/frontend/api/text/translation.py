"""What the other APIs for chats share: errors of a chat in the words of their own fields."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from shared.errors import InvalidRequest


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
def errors_named(words: Mapping[str, str]) -> Iterator[None]:
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
