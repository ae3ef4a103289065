"""The application as FastAPI sees it: what it documents, and what happens to failures."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from services.frontend.app import App, Base, Observability, TenantParts
from services.frontend.asgi import make_api
from services.frontend.config import FrontendConfig
from services.frontend.core.limits.capacity import Capacity
from services.frontend.core.limits.quotas import Quotas, TenantLimits
from services.frontend.core.observability.trace_sampler import TraceSampler
from services.frontend.observability.tracing import RequestTracer
from services.frontend.tenants.auth import Keyring
from services.frontend.tenants.gates import Gates
from shared.runtime.clock import ManualClock
from shared.tracing import NO_TRACER


def broken() -> Any:
    raise RuntimeError("a bug")


def ask(method: str, path: str, **options: Any) -> httpx.Response:
    """One request to an application whose models cannot be listed."""
    nothing = cast(Any, None)
    gates = Gates(ThreadPoolExecutor, is_shared=False)
    quotas = Quotas(TenantLimits(), {})
    tracer = RequestTracer(NO_TRACER, ManualClock(), TraceSampler(1.0, 1.0), lambda: 0.5)
    app = App(
        base=Base(config=FrontendConfig(), bus=nothing, clock=nothing),
        library=cast(Any, SimpleNamespace(models=SimpleNamespace(all=broken))),
        storage=nothing,
        turns=cast(Any, SimpleNamespace(jobs=nothing)),
        tenants=TenantParts(
            slots=nothing,
            capacity=Capacity(0, 0),
            quotas=quotas,
            gates=gates,
            adapter_changes=nothing,
        ),
        observability=Observability(metrics=nothing, feed=nothing, tracer=tracer),
    )

    async def request() -> httpx.Response:
        transport = httpx.ASGITransport(make_api(app, Keyring(None)))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as http:
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


def test_who_asks_as_anthropic_s_clients_do_is_answered_so() -> None:
    headers = {"X-Request-Id": "mine", "Host": "evil.example:8080"}
    asked = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        told = ask("POST", path, headers=headers, json=asked).json()
        assert told["error"]["code"] == "host_not_allowed"
        assert (told["type"], told["request_id"]) == ("error", "mine")
    broken = ask("POST", "/v1/messages", json=asked, headers={"X-Request-Id": "mine"})
    assert broken.status_code == 500
    assert broken.json()["error"]["type"] == "api_error"
    assert broken.json()["request_id"] == broken.headers["request-id"] == "mine"
    assert ask("GET", "/v1/messages/batches").json().keys() == {"type", "error", "request_id"}
    assert ask("GET", "/v1/messages2").json().keys() == {"error"}


def test_bodies_are_documented_though_endpoints_parse_them() -> None:
    paths = ask("GET", "/openapi.json").json()["paths"]
    chat = paths["/v1/chat/completions"]["post"]
    targets = {"X-SLO-TTFT-Ms", "X-SLO-TPOT-Ms"}
    names = {"X-Session-Id", "X-Agent", "X-Workflow-Id"}
    assert {p["name"] for p in chat["parameters"]} == names | targets
    assert set(chat["responses"]) == {"200", "4XX", "5XX"}
    schema = chat["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["messages"]
    assert "tools" in schema["properties"] and "functions" not in schema["properties"]
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


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Host": "evil.example:8080"}, 421, "host_not_allowed"),
        ({"Origin": "http://evil.example"}, 403, "origin_not_allowed"),
        ({"Origin": "null"}, 403, "origin_not_allowed"),
        ({"Sec-Fetch-Site": "cross-site"}, 403, "origin_not_allowed"),
        ({"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
        ({"Content-Type": ""}, 415, "unsupported_media_type"),
    ],
)
def test_what_strange_pages_send_is_refused(
    headers: dict[str, str], status: int, code: str
) -> None:
    kept = {"Content-Type": "application/json"} | headers
    answer = ask("POST", "/tokenize", headers=kept, content=b'{"prompt": "x"}')
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    setting = {421: "SYMPHONY_ALLOW_HOSTS", 403: "SYMPHONY_CORS_ORIGINS"}.get(status, "")
    assert setting in error["message"]
    assert "x-request-id" in answer.headers


def test_who_asks_whether_it_lives_may_call_it_anything() -> None:
    headers = {"Host": "10-1-2-3.pod.example", "Origin": "http://evil.example"}
    assert ask("GET", "/ping", headers=headers).status_code == 200
