"""What ``/openapi.json`` says of bodies that endpoints parse themselves."""

from typing import Any

from services.frontend.api.bodies.base import Body
from services.frontend.api.bodies.fields import TABLE, TEXT
from services.frontend.api.bodies.meanings import of_body
from services.frontend.api.bodies.schemas import STRING, record
from services.frontend.http.request import (
    AGENT_HEADER,
    HEADER_CHARS_MAX,
    SESSION_HEADER,
    SLO_TPOT_HEADER,
    SLO_TTFT_HEADER,
    WORKFLOW_HEADER,
)
from shared.wire.messages import SLO_MS_MAX

HIDDEN = ("best_of", "tenant")  # of text: says nothing new; read over NATS only


def takes(body: type[Body], *headers: dict[str, Any]) -> dict[str, Any]:
    """`openapi_extra` of an endpoint that reads `body`."""
    schema = body.model_json_schema()
    definitions = schema.pop("$defs", {})
    for name in HIDDEN if body.endpoint in TEXT else ():
        schema["properties"].pop(name, None)
    for name in schema["properties"]:
        if values := TABLE[body.endpoint, name].values:
            schema["properties"][name] = {"enum": [*values, None]}
        schema["properties"][name]["description"] = of_body(body.endpoint, name)
    schema |= body.rules
    content = {"application/json": {"schema": _inline(schema, definitions)}}
    extra: dict[str, Any] = {"requestBody": {"required": True, "content": content}}
    if headers:
        extra["parameters"] = list(headers)
    return extra


def header(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    """An optional request header."""
    return {"in": "header", "name": name, "schema": schema, "description": description}


def name_header(name: str, description: str) -> dict[str, Any]:
    """A header that names something."""
    return header(name, description, {"type": "string", "maxLength": HEADER_CHARS_MAX})


def target_header(name: str, description: str) -> dict[str, Any]:
    """A header with a duration in milliseconds."""
    limits = {"exclusiveMinimum": 0, "maximum": SLO_MS_MAX}
    return header(name, description, {"type": "number", **limits})


TURN_HEADERS = (
    name_header(SESSION_HEADER, "The session, if the body does not name it"),
    name_header(AGENT_HEADER, "The agent whose turn it is, if the body does not name it"),
    name_header(WORKFLOW_HEADER, "What the agent works on, if the body does not name it"),
    target_header(SLO_TTFT_HEADER, "Target for the time to the first token, milliseconds"),
    target_header(SLO_TPOT_HEADER, "Target for the time between tokens, milliseconds"),
)


def streams(events: str, whole: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    """`responses` of an endpoint that answers `whole`, or with ``stream`` in these events."""
    return {
        200: {
            "description": f"The whole answer, or with `stream` events: {events}",
            "content": {
                "application/json": {"schema": whole},
                "text/event-stream": {"schema": record(data=STRING)},
            },
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
