"""The NATS reference: docs/asyncapi.json as a page."""

from typing import Any

from cli.docs.schemas import table

Json = dict[str, Any]
LINK = "#"
HEAD = """# NATS reference

Made from the code, as is [asyncapi.json](asyncapi.json), which says the same for programs
(AsyncAPI 3.0). How to connect, and what the public subjects do, is in [NATS](nats.md), which
also names each one's sender and receiver.

"""
TITLES = {
    "public": "Public subjects",
    "tenant": "What they become in a tenant's account",
    "internal": "Subjects between services",
}


def page(document: Json) -> str:
    """The page, as Markdown."""
    texts = {tag["name"]: tag["description"] for tag in document["info"]["tags"]}
    parts = [HEAD]
    for tag, title in TITLES.items():
        parts.append(f"## {title}\n\n{texts[tag]}\n\n")
        parts.append("| subject | message | answer | queue group |\n|---|---|---|---|\n")
        parts += [
            _row(document, operation)
            for operation in document["operations"].values()
            if {"name": tag} in operation["tags"]
        ]
        parts.append("\n")
    parts.append("## Messages\n\n")
    for name, schema in document["components"]["schemas"].items():
        parts.append(f"### {name}\n\n")
        if said := schema.get("description"):
            parts.append(f"{said}\n\n")
        parts.append(table(schema, LINK) or "It has no fields.\n\n")
    return "".join(parts)


def _row(document: Json, operation: Json) -> str:
    channel = document["channels"][operation["channel"]["$ref"].rpartition("/")[2]]
    requests = [_linked(each) for each in operation["messages"]]
    replies = [_linked(each) for each in operation.get("reply", {}).get("messages", ())]
    queue = operation.get("bindings", {}).get("nats", {}).get("queue", "")
    return f"| `{channel['address']}` | {', '.join(requests)} | {', '.join(replies)} | {queue} |\n"


def _linked(message: Json) -> str:
    name = message["$ref"].rpartition("/")[2]
    if name.startswith("OpenAI"):
        return "[as over HTTP](nats.md#turns-symphonyinferencesubmit)"
    return f"[{name}]({LINK}{name.lower()})"
