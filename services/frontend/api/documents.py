"""What ``/openapi.json`` says of bodies that endpoints parse themselves."""

from typing import Any

from services.frontend.api.bodies import Body
from services.frontend.request import SESSION_HEADER, SLO_TTFT_HEADER


def takes(body: type[Body], *headers: dict[str, Any]) -> dict[str, Any]:
    """`openapi_extra` of an endpoint that reads `body`."""
    schema = body.model_json_schema()
    definitions = schema.pop("$defs", {})
    content = {"application/json": {"schema": _inline(schema, definitions)}}
    extra: dict[str, Any] = {"requestBody": {"required": True, "content": content}}
    if headers:
        extra["parameters"] = list(headers)
    return extra


def header(name: str, kind: str, description: str) -> dict[str, Any]:
    """An optional request header."""
    return {"in": "header", "name": name, "schema": {"type": kind}, "description": description}


TURN_HEADERS = (
    header(SESSION_HEADER, "string", "The session, if the body does not name it"),
    header(SLO_TTFT_HEADER, "number", "Target for the time to the first token, milliseconds"),
)


def streams(chunk: str) -> dict[int | str, dict[str, Any]]:
    """`responses` of an endpoint that answers whole, or with ``stream`` in events of `chunk`."""
    return {
        200: {
            "description": f"The whole answer, or events of `{chunk}` and then `[DONE]`",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    }


def _inline(schema: Any, definitions: dict[str, Any]) -> Any:
    """`schema` with its references replaced by what they name."""
    if isinstance(schema, list):
        return [_inline(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {key: _inline(value, definitions) for key, value in schema.items()}
