"""What is asked over HTTP and how answers are read, by threads and by asyncio alike."""

import asyncio
import json
from typing import Any

import pytest

from cli.base.children import free_port
from symphony_client import (
    AdvisoryState,
    AsyncSymphonyClient,
    BadAnswer,
    Forgotten,
    InvalidRequest,
    NotFound,
    Session,
    Settings,
    SymphonyClient,
    SymphonyError,
    Throttled,
    Unauthorized,
    Unavailable,
    Unreachable,
    Unsupported,
)
from symphony_client.core import calls
from tests.clients.fake_frontend import FakeFrontend, Reply, refusal, state_of

SESSION = {"id": "s", "object": "session", "model": "m", "num_tokens": 512, "num_blocks": 8,
           "num_turns": 2, "last_used": 1790000000, "expires": 1790086400.0}  # fmt: skip


def test_a_hint_says_what_it_is_told_and_nothing_else(frontend: FakeFrontend) -> None:
    with SymphonyClient(f"{frontend.url}/v1/", "secret") as client:
        state = client.advise("a", model="m", expected_arrival=2.5, agent="x", workflow_id="w")
        client.advise("b", ordered=True, priority=0, ttl_ms=5)
    assert state == AdvisoryState(**state_of("a"))
    assert state.is_live and state.worker_id == "w"
    first, second = frontend.asked
    assert (first.method, first.path) == ("POST", "/v1/advisories")
    assert first.headers["authorization"] == "Bearer secret"
    assert first.headers["content-type"] == "application/json"
    assert first.body == {"session_id": "a", "model_id": "m", "expected_arrival": 2.5,
                          "agent": "x", "workflow_id": "w"}  # fmt: skip
    assert second.body == {"session_id": "b", "ordered": True, "priority": 0, "ttl_ms": 5}


def test_asyncio_asks_the_same(frontend: FakeFrontend) -> None:
    answers: dict[str, Reply] = {
        "GET /v1/sessions/s": (200, SESSION),
        "DELETE /v1/sessions/s": (200, {"id": "s", "deleted": True, "num_blocks": 8}),
    }

    def answer(asked: Any) -> Reply:
        found = answers.get(f"{asked.method} {asked.path}")
        return found or (200, state_of("s", "used", of_a_later_house=1))

    frontend.answer = answer

    async def scenario() -> list[Any]:
        async with AsyncSymphonyClient(frontend.url) as client:
            return [
                await client.advise("s", expected_arrival=1),
                await client.advisory("s"),
                await client.invalidate("s"),
                await client.session("s"),
                await client.forget("s"),
            ]

    with SymphonyClient(frontend.url) as client:
        found: list[Any] = [
            client.advise("s", expected_arrival=1),
            client.advisory("s"),
            client.invalidate("s"),
            client.session("s"),
            client.forget("s"),
        ]
    num = len(frontend.asked)
    assert asyncio.run(scenario()) == found
    assert [(one.method, one.path, one.body) for one in frontend.asked[:num]] == [
        (one.method, one.path, one.body) for one in frontend.asked[num:]
    ]
    assert not found[0].is_live
    assert found[3] == Session(
        id="s", model="m", num_tokens=512, num_blocks=8, num_turns=2,
        last_used=1790000000.0, expires=1790086400.0,
    )  # fmt: skip
    assert found[4] == Forgotten(id="s", deleted=True, num_blocks=8)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequest), (401, Unauthorized), (403, Unauthorized), (404, NotFound),
        (413, InvalidRequest), (429, Throttled), (500, Unavailable), (503, Unavailable),
    ],
)  # fmt: skip
def test_refusals_say_whose_fault_it_is(
    frontend: FakeFrontend, status: int, kind: type[SymphonyError]
) -> None:
    frontend.answer = lambda _: refusal(status, "the_code", "in words")
    frontend.headers = {"Retry-After": "7"}
    with SymphonyClient(frontend.url) as client, pytest.raises(SymphonyError) as caught:
        client.advisory("s")
    error = caught.value
    assert type(error) is kind
    assert (error.message, error.code, error.status) == ("in words", "the_code", status)
    assert error.retry_after_s == 7


def test_nobody_there() -> None:
    with SymphonyClient(f"http://127.0.0.1:{free_port()}") as client, pytest.raises(Unreachable):
        client.advise("s")


def test_a_deployment_that_never_answers_is_not_waited_for(frontend: FakeFrontend) -> None:
    frontend.free.clear()

    async def scenario() -> None:
        async with AsyncSymphonyClient(frontend.url, timeout_s=0.05) as client:
            await client.advise("s")

    with SymphonyClient(frontend.url, timeout_s=0.05) as client, pytest.raises(Unreachable):
        client.advise("s")
    with pytest.raises(Unreachable):
        asyncio.run(scenario())


def test_a_closed_client_says_so(frontend: FakeFrontend) -> None:
    client = SymphonyClient(frontend.url)
    client.close()
    client.close()
    with pytest.raises(Unreachable):
        client.advise("s")


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b"\xff", b"{}", b'{"session_id": 1}'])
def test_what_is_no_answer_is_told_as_that(content: bytes) -> None:
    call = calls.advisory("s")
    with pytest.raises(BadAnswer):
        calls.read_http(call, 200, {}, content)
    with pytest.raises(BadAnswer):
        calls.read_nats(call, None, content)
    with pytest.raises(Unavailable, match="status 502"):
        calls.read_http(call, 502, {}, b"<html>")
    with pytest.raises(BadAnswer):
        calls.read_http(call, 302, {}, b"")


@pytest.mark.parametrize(
    ("session_id", "path"),
    [
        ("a/b c", "a%2Fb%20c"), ("é%41?#", "%C3%A9%2541%3F%23"), ("..", "%2E%2E"), (".", "%2E"),
        ("a..", "a.."),
    ],
)  # fmt: skip
def test_any_name_of_a_session_fits_into_a_path(
    frontend: FakeFrontend, session_id: str, path: str
) -> None:
    with SymphonyClient(frontend.url) as client:
        client.advisory(session_id)
    assert frontend.asked[0].path == f"/v1/advisories/{path}"


@pytest.mark.parametrize("session_id", ["", "x" * 257])
def test_no_name_of_a_session_is_not_sent(frontend: FakeFrontend, session_id: str) -> None:
    with SymphonyClient(frontend.url) as client:
        for ask in (client.advise, client.advisory, client.invalidate, client.session):
            with pytest.raises(InvalidRequest, match="session_id"):
                ask(session_id)
    assert not frontend.asked


def test_refusals_over_nats() -> None:
    body = {"code": "hints_throttled", "message": "m", "http_status": 429, "retry_after_s": 2}
    with pytest.raises(Throttled) as caught:
        calls.read_nats(
            calls.advisory("s"), {"Symphony-Error": "hints_throttled"}, json.dumps(body).encode()
        )
    assert (caught.value.code, caught.value.retry_after_s) == ("hints_throttled", 2.0)
    with pytest.raises(Unsupported):
        calls.subject_of(calls.session("s"))


def test_settings_are_arguments_else_the_environment_else_this_machine() -> None:
    environment = {"SYMPHONY_BASE_URL": "https://house/v1", "SYMPHONY_API_KEY": "k"}
    assert Settings.read(environment={}) == Settings("http://127.0.0.1:8080", None)
    assert Settings.read(environment=environment) == Settings("https://house", "k")
    given = Settings.read("http://x:1/", "mine", 3.0, environment)
    assert given == Settings("http://x:1", "mine", 3.0)
    assert "mine" not in repr(given)
    for wrong in ("house:8080", "ftp://house"):
        with pytest.raises(InvalidRequest, match="base_url"):
            Settings.read(wrong)
    with pytest.raises(InvalidRequest, match="timeout_s"):
        Settings.read(timeout_s=0)
