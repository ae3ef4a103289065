"""``python -m cli.docs.asyncapi > docs/asyncapi.json``: every NATS subject as AsyncAPI 3.0, from
the table of subjects and the types of messages.

A test holds the file equal to what this prints. Operations are written from the deployment's side:
it receives what is in `shared.wire.subjects`, and replies.
"""

import inspect
import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

from cli.base.children import ROOT
from cli.docs.comments import comments_below
from cli.docs.meanings import COMMON
from shared.bus.connection import ERROR_HEADER
from shared.wire import subjects
from shared.wire.subjects import (
    INFERENCE_SUBMIT,
    PUBLIC,
    TENANT_INFERENCE_SUBMIT,
    Bucket,
    NoReply,
    Subject,
)

_FIELD = re.compile(r"(\w+(?:, \w+)*): (.*)")


def parts_of(docstring: str) -> tuple[str, dict[str, str]]:
    """What is said of a type, and of each of its fields under ``Attributes:``.

    >>> parts_of("A thing.\\n\\nAttributes:\\n    a, b: sizes,\\n        in bytes.\\n")
    ('A thing.', {'a': 'sizes, in bytes.', 'b': 'sizes, in bytes.'})
    """
    text, _, attributes = inspect.cleandoc(docstring).partition("Attributes:")
    fields: dict[str, list[str]] = {}
    last: list[str] = []
    for line in inspect.cleandoc("\n" + attributes).splitlines():
        found = _FIELD.fullmatch(line)
        if found and not line.startswith(" "):
            last = [found[2]]
            fields |= dict.fromkeys(found[1].split(", "), last)
        elif line.strip():
            last.append(line.strip())
    fields_text = {name: " ".join(lines).replace("``", "`") for name, lines in fields.items()}
    return text.strip().replace("``", "`"), fields_text


Json = dict[str, Any]
SCHEMAS = "#/components/schemas/"
STARS = {
    "worker": ("workerId", "a worker's id"),
    "frontend": ("frontendId", "a frontend's id"),
    "scheduler": ("shard", "the number of a scheduler shard"),
    "tracker": ("shard", "the number of a tracker shard"),
    "kv": ("hostId", "a host's id"),
    "tenant": ("tenant", "the tenant, as its NATS account is called"),
    "lease": ("lease", "what is led"),
    "symphony-lease": ("lease", "what is led"),
    "symphony-leases": ("lease", "what is led"),
}
"""What a star stands for, by the word before it."""
TAGS = {
    "public": "For clients and agent frameworks. Kept from release to release.",
    "tenant": "What NATS makes of a public subject where tenants have accounts. Clients do not "
    "publish to it.",
    "internal": "Between services of one release. May change with any.",
}


def document() -> Json:
    """All of it."""
    channels: Json = {}
    operations: Json = {}
    kinds: set[type] = set()
    for name, subject in declared():
        kinds |= {subject.request, subject.reply} - {NoReply}
        channels |= _channels(name, subject)
        operations[name] = _operation(name, subject)
    for name, bucket in _buckets():
        kinds.add(bucket.value)
        channels[name] = _channel(f"$KV.{bucket.name}.*", bucket.value.__name__, "internal")
    for name, pattern in (
        ("inference_submit", INFERENCE_SUBMIT),
        ("tenant_inference_submit", TENANT_INFERENCE_SUBMIT),
    ):
        channels |= _inference_channels(name, pattern)
        operations[name] = _receive(name, ["OpenAIRequest"], ["OpenAIReply"], _tag(name, pattern))
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Symphony over NATS",
            "version": _version(),
            "description": "Every subject of a deployment. docs/nats.md says how to connect, and "
            "what the public ones do.",
            "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": _messages(kinds), "schemas": _schemas(kinds)},
    }


def _version() -> str:
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return version


def declared() -> Iterator[tuple[str, Subject[Any, Any]]]:
    """Every subject of the table with a name for it, in the table's order."""
    for name, value in vars(subjects).items():
        if isinstance(value, Subject):
            yield name.lower(), value


def _buckets() -> Iterator[tuple[str, Bucket[Any]]]:
    for name, value in vars(subjects).items():
        if isinstance(value, Bucket):
            yield name.lower(), value


def _tag(name: str, pattern: str) -> str:
    if pattern in PUBLIC:
        return "public"
    return "tenant" if name.startswith("tenant_") else "internal"


def _channels(name: str, subject: Subject[Any, Any]) -> Json:
    """That of a subject, and of its replies if there are any."""
    tag = _tag(name, subject.pattern)
    found = {name: _channel(subject.pattern, subject.request.__name__, tag)}
    if subject.reply is not NoReply:
        found[f"{name}_reply"] = _reply_channel(subject.reply.__name__, "Refusal")
    return found


def _inference_channels(name: str, pattern: str) -> Json:
    return {
        name: _channel(pattern, "OpenAIRequest", _tag(name, pattern)),
        f"{name}_reply": _reply_channel("OpenAIReply"),
    }


def _channel(pattern: str, message: str, tag: str) -> Json:
    words = pattern.split(".")
    parameters: Json = {}
    for at, word in enumerate(words):
        if word == "*":
            name, description = STARS[words[at - 1]]
            words[at] = f"{{{name}}}"
            parameters[name] = {"description": description}
    channel: Json = {
        "address": ".".join(words),
        "messages": {message: {"$ref": f"#/components/messages/{message}"}},
        "tags": [{"name": tag}],
    }
    return channel | ({"parameters": parameters} if parameters else {})


def _reply_channel(*messages: str) -> Json:
    """An inbox: its address comes with the request."""
    refs = {message: {"$ref": f"#/components/messages/{message}"} for message in messages}
    return {"address": None, "messages": refs}


def _operation(name: str, subject: Subject[Any, Any]) -> Json:
    replies = [] if subject.reply is NoReply else [subject.reply.__name__, "Refusal"]
    tag = _tag(name, subject.pattern)
    operation = _receive(name, [subject.request.__name__], replies, tag)
    if subject.queue:
        operation["bindings"] = {"nats": {"queue": subject.queue, "bindingVersion": "0.1.0"}}
    return operation


def _receive(name: str, requests: list[str], replies: list[str], tag: str) -> Json:
    operation: Json = {
        "action": "receive",
        "channel": {"$ref": f"#/channels/{name}"},
        "messages": [{"$ref": f"#/channels/{name}/messages/{each}"} for each in requests],
        "tags": [{"name": tag}],
    }
    if replies:
        inbox = f"#/channels/{name}_reply"
        operation["reply"] = {
            "channel": {"$ref": inbox},
            "messages": [{"$ref": f"{inbox}/messages/{each}"} for each in replies],
        }
    return operation


def _messages(kinds: set[type]) -> Json:
    named = {
        kind.__name__: {"payload": {"$ref": f"{SCHEMAS}{kind.__name__}"}} for kind in _sorted(kinds)
    }
    refusal = {
        "summary": "In place of any reply: the request was refused.",
        "headers": {
            "type": "object",
            "required": [ERROR_HEADER],
            "properties": {ERROR_HEADER: {"type": "string", "description": "the code"}},
        },
        "payload": {"$ref": f"{SCHEMAS}Refusal"},
    }
    request = {
        "summary": "A body of the HTTP API: which endpoint's follows from its fields.",
        "payload": {"type": "object", "properties": {"model": {"type": "string"}}},
    }
    reply = {
        "summary": "What the endpoint answers; with `stream` a message a chunk, then `[DONE]`.",
        "payload": {"type": ["object", "string"]},
    }
    return {**named, "Refusal": refusal, "OpenAIRequest": request, "OpenAIReply": reply}


def _schemas(kinds: set[type]) -> Json:
    """JSON schemas of the types and of all that is in them."""
    inputs: list[Any] = [(kind, "validation", TypeAdapter(kind)) for kind in _sorted(kinds)]
    template = SCHEMAS + "{model}"
    _, made = TypeAdapter.json_schemas(inputs, ref_template=template)
    schemas: Json = {name: _plain(schema) for name, schema in sorted(made["$defs"].items())}
    code, text, status = {"type": "string"}, {"type": "string"}, {"type": "integer"}
    schemas["Refusal"] = {
        "type": "object",
        "required": ["code", "message", "http_status"],
        "properties": {
            "code": code, "message": text, "http_status": status,
            "param": {"type": ["string", "null"]}, "retry_after_s": {"type": ["number", "null"]},
        },
    }  # fmt: skip
    _explain(schemas)
    return schemas


def _plain(schema: Any) -> Any:
    """Without titles, which only repeat names, and with what is said of fields at these."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _plain(value) for key, value in schema.items() if not _is_title(key, value)}
    if "properties" in plain and isinstance(plain.get("description"), str):
        text, of_fields = parts_of(plain.pop("description"))
        for name, meaning in of_fields.items():
            if name in plain["properties"]:
                plain["properties"][name]["description"] = meaning
        plain = {"description": text, **plain} if text else plain
    return plain


def _explain(schemas: Json) -> None:
    """Say what each field means that its type's docstring does not speak of."""
    comments = comments_below(ROOT / "shared" / "wire" / "messages")
    for kind, schema in schemas.items():
        for name, field in schema.get("properties", {}).items():
            meaning = comments.get(kind, {}).get(name) or COMMON.get(name)
            if meaning and "description" not in field:
                field["description"] = meaning.replace("``", "`")


def _is_title(key: str, value: Any) -> bool:
    return key == "title" and isinstance(value, str)  # a field may be called so: then it is a dict


def _sorted(kinds: set[type]) -> list[type]:
    return sorted(kinds, key=lambda kind: kind.__name__)


def render() -> str:
    """The file's text. Short lists and objects stand on one line: it is read, too."""
    text = json.dumps(document(), indent=1, ensure_ascii=False)
    short = re.compile(r"([\[{])\n\s+([^\[\]{}\n]{1,80})\n\s+([\]}])")
    return short.sub(r"\1\2\3", text) + "\n"


if __name__ == "__main__":
    print(render(), end="")
