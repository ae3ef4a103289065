"""The application as FastAPI sees it: what it documents, and what happens to failures."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from services.frontend.app import App
from services.frontend.auth import Keyring
from services.frontend.config import FrontendConfig
from services.frontend.edge import make_api


def broken() -> Any:
    raise RuntimeError("a bug")


def ask(method: str, path: str, **options: Any) -> httpx.Response:
    """One request to an application whose models cannot be listed."""
    parts = SimpleNamespace(all=broken)
    nothing = cast(Any, None)
    app = App(FrontendConfig(), nothing, nothing, cast(Any, parts), nothing, nothing, nothing)

    async def request() -> httpx.Response:
        transport = httpx.ASGITransport(make_api(app, Keyring(None)))
        async with httpx.AsyncClient(transport=transport, base_url="http://edge") as http:
            return await http.request(method, path, **options)

    return asyncio.run(request())


def test_a_bug_is_an_answer_and_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    answer = ask("GET", "/v1/models", headers={"X-Request-Id": "mine"})
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert error["type"] == "server_error" and error["code"] == "internal_error"
    assert "a bug" not in answer.text
    assert answer.headers["x-request-id"] == "mine"
    assert "a bug" in caplog.text


def test_bodies_are_documented_though_endpoints_parse_them() -> None:
    paths = ask("GET", "/openapi.json").json()["paths"]
    chat = paths["/v1/chat/completions"]["post"]
    assert {p["name"] for p in chat["parameters"]} == {"X-Session-Id", "X-SLO-TTFT-Ms"}
    assert set(chat["responses"]) == {"200", "4XX", "5XX"}
    schema = chat["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["model", "messages"]
    assert "tools" not in schema["properties"]
    assert "$ref" not in str(schema) and "include_usage" in str(schema["properties"])
    for path in ("/v1/completions", "/v1/advisories", "/tokenize", "/detokenize"):
        assert "requestBody" in paths[path]["post"]
    rerank = paths["/v1/rerank"]["post"]
    assert {p["name"] for p in rerank["parameters"]} == {"X-SLO-Ms"}
    schema = rerank["requestBody"]["content"]["application/json"]["schema"]
    assert {"documents", "truncate_prompt_tokens"} <= set(schema["properties"])
    assert "/" not in paths


def test_no_page_runs_scripts_of_others() -> None:
    for path in ("/docs", "/redoc"):
        answer = ask("GET", path)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "unknown_url"
