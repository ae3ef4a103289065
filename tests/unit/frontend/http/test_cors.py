"""Pages of other origins: who may send requests and read their answers."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from services.frontend.app import App
from services.frontend.asgi import make_api
from services.frontend.config import FrontendConfig
from services.frontend.tenants.auth import Keyring
from shared.errors import ConfigError
from shared.runtime.config import load_config

APP = "https://app.example.org"
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "x-session"}


def ask(method: str, origin: str | None, *origins: str, **headers: str) -> httpx.Response:
    config = FrontendConfig(cors_origins=list(origins))
    app = cast(App, SimpleNamespace(config=config))

    async def request() -> httpx.Response:
        transport = httpx.ASGITransport(make_api(app, Keyring(None)))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as http:
            own = {"origin": origin, **headers} if origin else headers
            return await http.request(method, "/version", headers=own)

    return asyncio.run(request())


def test_a_named_page_may_ask_and_read() -> None:
    asked_first = ask("OPTIONS", APP, APP, **PREFLIGHT)
    assert asked_first.status_code == 200
    allowed = asked_first.headers["access-control-allow-methods"]
    assert asked_first.headers["access-control-allow-origin"] == APP and "POST" in allowed
    assert "x-session" in asked_first.headers["access-control-allow-headers"]
    answer = ask("GET", APP, APP)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, APP)
    assert "x-request-id" in answer.headers["access-control-expose-headers"].lower()


@pytest.mark.parametrize("origins", [(), ("https://other.example.org",)])
def test_nobody_else_may(origins: tuple[str, ...]) -> None:
    for answer in (ask("GET", APP, *origins), ask("OPTIONS", APP, *origins, **PREFLIGHT)):
        assert answer.status_code in {400, 403}
        assert "access-control-allow-origin" not in answer.headers
    assert ask("GET", None, *origins).status_code == 200


@pytest.mark.parametrize("value", ['["app.example.org"]', '["https://"]', '["https://a/b"]'])
def test_what_is_no_origin_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="CORS_ORIGINS"):
        load_config(FrontendConfig, {"SYMPHONY_CORS_ORIGINS": value})


def test_everybody_may_come_where_keys_are_asked_for(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "SYMPHONY_CORS_ORIGINS": '["*"]', "SYMPHONY_API_KEYS_FILE": str(tmp_path / "keys.json")
    }  # fmt: skip
    assert load_config(FrontendConfig, settings).allowed_origins == {"*"}
    with pytest.raises(ConfigError, match="SYMPHONY_API_KEYS_FILE"):
        ask("GET", APP, "*")
