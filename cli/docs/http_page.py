"""The HTTP reference: what a frontend says of itself at ``/openapi.json``, as a page."""

from types import SimpleNamespace
from typing import Any, cast

from cli.docs.schemas import table
from services.frontend.app import App
from services.frontend.asgi import make_api
from services.frontend.config import FrontendConfig
from services.frontend.tenants.auth import Keyring

Json = dict[str, Any]
HEAD = """# HTTP reference

Made from the code: what a frontend of this release answers at `/openapi.json`, which is
[here as a file](openapi.json), too. What it means is in [the HTTP API](api.md); what becomes
of every known field in [request fields](fields.md).

"""


def openapi() -> Json:
    """The document of a frontend with its default settings."""
    app = cast(App, SimpleNamespace(config=FrontendConfig.model_construct()))
    return make_api(app, Keyring(None)).openapi()


def page(document: Json) -> str:
    """The page, as Markdown."""
    sections = [
        _endpoint(f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return HEAD + "".join(sections)


def _endpoint(title: str, operation: Json) -> str:
    text = f"## `{title}`\n\n"
    if said := operation.get("description") or operation.get("summary"):
        text += f"{said}\n\n"
    if parameters := operation.get("parameters"):
        text += "| parameter | in | meaning |\n|---|---|---|\n"
        for each in parameters:
            text += f"| `{each['name']}` | {each['in']} | {each.get('description', '')} |\n"
        text += "\n"
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        text += _body(f"Body, `{kind}`", content["schema"], "needed")
    for status, answer in operation["responses"].items():
        if status.isdigit():
            text += f"**{status}**: {answer['description']}\n\n"
            for kind, content in answer.get("content", {}).items():
                text += _body(f"`{kind}`", content.get("schema", {}), "always")
    return text


def _body(title: str, schema: Json, required: str) -> str:
    fields = table(schema, required=required)
    return f"{title}:\n\n{fields}" if fields else f"{title}\n\n"
