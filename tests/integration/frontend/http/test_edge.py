"""The HTTP edge: errors, keys, sessions, advisories, NATS; and bodies that nobody expected."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from services.frontend.config import FrontendConfig
from services.frontend.http.server import listen
from services.frontend.service import main
from shared.blocks import BLOCK_TOKENS
from shared.errors import ConfigError, NotFound
from shared.ids import DEFAULT_TENANT, HostId, SessionId, tenant_token
from shared.locations import (
    KV_HOSTS_KEY,
    HostClaim,
    encode_claim,
    encode_location,
    location_redis_key,
)
from shared.owners import owner_key
from shared.wire import messages as m
from shared.wire.subjects import (
    ADVISORY_GET,
    ADVISORY_INVALIDATE,
    ADVISORY_SUBMIT,
    INFERENCE_SUBMIT,
    TENANT_ADVISORY_SUBMIT,
    TENANT_INFERENCE_SUBMIT,
)
from tests.conftest import Server
from tests.integration.frontend.deployment import (
    EOS,
    MODEL,
    MODEL_LEN,
    Deployment,
    Reply,
    deployment,
    eventually,
)
from tests.integration.harness import client_of, running

JSON = {"Content-Type": "application/json"}
HI = [{"role": "user", "content": "hi"}]
CHAT = {"model": MODEL, "messages": HI}


async def locate(server: Server, *names: str) -> None:
    """Two blocks of these sessions are on host h1."""
    async with Redis.from_url(server.url) as redis:
        for name in names:
            located = location_redis_key(owner_key(DEFAULT_TENANT, SessionId(name)))
            await redis.hset(located, "h1", encode_location("a", 2))
        await redis.hset(KV_HOSTS_KEY, "h1", encode_claim(HostClaim("a", 0, len(names))))


async def check_errors(it: Deployment) -> None:
    long = {"model": MODEL, "messages": [{"role": "user", "content": "x" * MODEL_LEN}]}
    cases: list[tuple[str, str, Any, int, str | None]] = [
        ("POST", "/v1/chat/completions", b"{", 400, None),
        ("POST", "/v1/chat/completions", b'{"model": "\xff"}', 400, None),
        ("POST", "/v1/chat/completions", CHAT | {"model": "no"}, 404, "model_not_found"),
        ("POST", "/v1/chat/completions", long, 400, "context_length_exceeded"),
        ("POST", "/v1/chat/completions", CHAT | {"functions": [{}]}, 400, "unsupported_value"),
        ("POST", "/v1/completions", {"model": MODEL, "prompt": [EOS + 9]}, 400, None),
        ("POST", "/v1/completions", b"x" * 200_001, 413, "request_too_large"),
        ("GET", "/v1/nothing", None, 404, "unknown_url"),
        ("GET", "/v1/chat/completions", None, 405, "method_not_allowed"),
        ("GET", "/static/../config.py", None, 404, "unknown_url"),
    ]
    for method, path, body, status, code in cases:
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        answer = await it.http.request(method, path, content=content, headers=JSON)
        assert answer.status_code == status, (path, answer.text)
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert code is None or error["code"] == code

    async def endless() -> Any:
        for _ in range(100):
            yield b"x" * 10_000

    answer = await it.http.post("/v1/completions", content=endless(), headers=JSON)
    assert answer.status_code == 413
    answer = await it.http.put("/v1/advisories/s")
    assert answer.status_code == 405 and answer.headers["allow"] == "GET, DELETE"
    answer = await it.http.options("/v1/responses/compact")
    assert answer.status_code == 405 and answer.headers["allow"] == "POST", "it is no response"
    answer = await it.http.get(f"/v1/sessions/{'s' * 257}")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "session_id"
    slow = [("X-SLO-TTFT-Ms", "soon"), ("X-SLO-TPOT-Ms", "3600001")]
    for name, value in (*slow, ("X-Session-Id", "s" * 257)):
        answer = await it.http.post("/v1/chat/completions", json=CHAT, headers={name: value})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == name


async def check_slo_travels(it: Deployment) -> None:
    for header, seen in ((None, None), ("250", 250.0), ("0.5", 0.5)):
        headers = {"X-SLO-TTFT-Ms": header, "X-SLO-TPOT-Ms": f"{header}1"} if header else {}
        answer = await it.http.post("/v1/chat/completions", json=CHAT, headers=headers)
        assert answer.status_code == 200
        submit = it.fake.submits[-1]
        assert submit.slo_ttft_ms == seen
        assert submit.slo_tpot_ms == (float(f"{header}1") if header else None)


async def check_small_endpoints(it: Deployment) -> None:
    assert (await it.http.get("/health")).content == b""
    assert (await it.http.get("/ping")).status_code == 200
    assert "version" in (await it.http.get("/version")).json()
    echoed = await it.http.get("/ping", headers={"X-Request-Id": "mine"})
    assert echoed.headers["x-request-id"] == "mine"
    page = await it.http.get("/")
    assert page.status_code == 200 and "main.js" in page.text
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for name in ("js/main.js", "symphony.js", "chat.css", "icon.svg"):
        assert (await it.http.get(f"/static/{name}")).status_code == 200
    tokens = (await it.http.post("/tokenize", json={"model": MODEL, "prompt": "h\u00e4"})).json()
    assert tokens["tokens"] == [*"h\u00e4".encode()]
    assert tokens["max_model_len"] == MODEL_LEN
    rendered = await it.http.post("/tokenize", json={"messages": HI, "return_token_strs": True})
    assert rendered.json()["token_strs"][0] == "<|im_start|>"
    back = await it.http.post("/detokenize", json={"tokens": tokens["tokens"]})
    assert back.json() == {"prompt": "h\u00e4"}
    metrics = (await it.http.get("/metrics")).text
    for name in ("time_to_first_token_seconds_bucket", "num_requests_running", "http_errors_total"):
        assert f"symphony_{name}" in metrics


def test_errors_and_small_endpoints(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path, body_bytes_max=200_000) as it:
            await check_errors(it)
            await check_small_endpoints(it)
            await check_slo_travels(it)
            it.fake.is_reporting = False
            async with asyncio.timeout(10):
                answer = await it.http.get("/health")
                while answer.status_code == 200:
                    answer = await it.http.get("/health")
            assert answer.status_code == 503
            answer = await it.http.get(f"/v1/models/{MODEL}")
            assert answer.status_code == 503 and "retry-after" in answer.headers

    asyncio.run(scenario())


def test_sessions_are_extended_token_for_token(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        said = Reply(" hello STOP")
        async with deployment(nats_server, redis_server, tmp_path, lambda _: said) as it:
            messages = [*HI, {"role": "user", "content": "and " * (BLOCK_TOKENS // 2)}]

            async def turn(**extra: Any) -> list[int]:
                answer = await it.http.post(
                    "/v1/chat/completions",
                    json={"model": MODEL, "messages": messages, "stop": "STOP"} | extra,
                    headers={"X-Session-Id": "s/1"},
                )
                assert answer.status_code == 200, answer.text
                content = answer.json()["choices"][0]["message"]["content"]
                messages.extend(
                    [
                        {"role": "assistant", "content": content.strip()},
                        {"role": "user", "content": "more"},
                    ]
                )
                return m.unpack_ints(it.fake.prompts[-1].tokens)

            await locate(redis_server, "s/1", "s/2")
            first = await turn()
            second = await turn()
            # The template shows the stripped reply; the stored tokens keep its spaces.
            assert second[: len(first) + 7] == [*first, *b" hello "]
            assert it.fake.submits[-1].session_id == "s/1"
            # No prompt finds more of its session's blocks than it has itself.
            assert len(second) < MODEL_LEN and it.fake.submits[-1].kv_at == {"h1": 2}
            for num, kv_at in ((3 * BLOCK_TOKENS, {"h1": 2}), (BLOCK_TOKENS - 1, {"h1": 1})):
                tokens = {"model": MODEL, "prompt": [1] * num, "session_id": "s/2"}
                assert (await it.http.post("/v1/completions", json=tokens)).status_code == 200
                assert it.fake.submits[-1].kv_at == kv_at
            record = (await it.http.get("/v1/sessions/s/1")).json()
            assert record["num_turns"] == 2 and record["num_tokens"] == len(second) + 7
            assert (await it.http.get("/v1/sessions/none")).status_code == 404

            redis_server.kill()
            third = await turn()
            assert bytes(t for t in third if t < 256).count(b"hello") == 2
            assert bytes(t for t in third if t < 256).count(b" hello ") == 0
            assert (await it.http.get("/v1/sessions/s/1")).status_code == 503
            redis_server.start()
            async with asyncio.timeout(10):
                while (await it.http.get("/v1/sessions/s/1")).status_code == 503:
                    pass
            await turn()
            answer = await it.http.delete("/v1/sessions/s/1")
            assert answer.json()["deleted"] is True
            assert (await it.http.delete("/v1/sessions/s/1")).status_code == 404

    asyncio.run(scenario())


def test_advisories(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path) as it:
            heard: list[m.Advisory] = []

            async def submit(advisory: m.Advisory) -> m.AdvisoryState:
                heard.append(advisory)
                return m.AdvisoryState(session_id=advisory.session_id, state="placed")

            async def get(key: m.AdvisoryKey) -> m.AdvisoryState:
                if key.session_id != "s":
                    raise NotFound("no advisory", "session_id")
                return m.AdvisoryState(session_id=key.session_id, state="invalidated")

            await it.bus.serve(ADVISORY_SUBMIT, submit)
            await it.bus.serve(ADVISORY_GET, get)
            await it.bus.serve(ADVISORY_INVALIDATE, get)
            await it.bus.flush()
            await locate(redis_server, "s")
            body = {"session_id": "s", "model_id": MODEL, "expected_arrival": 2, "priority": 3}
            answer = await it.http.post("/v1/advisories", json=body)
            assert answer.status_code == 202 and answer.json()["state"] == "placed"
            assert heard[0].expected_arrival == 2 and heard[0].tenant == "default"
            assert heard[0].kv_at == {"h1": 2}
            forged = m.Advisory(session_id=SessionId("other"), kv_at={HostId("h1"): 9})
            await it.bus.request(TENANT_ADVISORY_SUBMIT, forged, tenant_token(DEFAULT_TENANT))
            assert heard[1].kv_at == {}, "a stranger's word for it does not count"
            assert (await it.http.delete("/v1/advisories/s")).json()["state"] == "invalidated"
            missing = await it.http.get("/v1/advisories/other")
            assert missing.status_code == 404 and missing.json()["error"]["param"] == "session_id"
            wrong = await it.http.post("/v1/advisories", json={"session_id": ""})
            assert wrong.status_code == 400

    asyncio.run(scenario())


def test_keys_are_asked_for(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def scenario() -> None:
        keys = tmp_path / "keys.json"
        keys.write_text(json.dumps([{"key": "k1", "tenant": "acme", "scopes": ["inference"]}]))
        async with deployment(nats_server, redis_server, tmp_path, api_keys_file=keys) as it:
            for path in (
                "/v1/models",
                "/openapi.json",
                "/metrics",
                "/",
                "/static/js/main.js",
                "/v1/no",
            ):
                answer = await it.http.get(path)
                assert answer.status_code == 401
                assert answer.json()["error"]["code"] == "invalid_api_key"
                assert "www-authenticate" in answer.headers
            assert (await it.http.get("/ping")).status_code == 200
            it.http.headers["Authorization"] = "Bearer k1"
            assert (await it.http.get("/metrics")).status_code == 403
            assert (await it.http.post("/v1/chat/completions", json=CHAT)).status_code == 200
            assert it.fake.submits[-1].tenant == "acme"

    asyncio.run(scenario())


def test_inference_over_nats(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def ask(it: Deployment, body: Any, subject: str = INFERENCE_SUBMIT) -> list[bytes]:
        client = client_of(it.bus)
        inbox = client.new_inbox()
        got: list[bytes] = []

        async def on_message(message: Any) -> None:
            got.append(message.data)

        subscription = await client.subscribe(inbox, cb=on_message)
        payload = body if isinstance(body, bytes) else orjson.dumps(body)
        await client.publish(subject, payload, reply=inbox)
        is_stream = isinstance(body, dict) and body.get("stream")
        last = b"[DONE]" if is_stream else None
        if subject != INFERENCE_SUBMIT:
            last = b""  # by which NATS forgets where answers to a tenant go
        await eventually(lambda: bool(got) and last in (None, got[-1]))
        await subscription.unsubscribe()
        return got

    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path) as it:
            (whole,) = await ask(it, CHAT | {"tenant": "acme"})
            assert orjson.loads(whole)["choices"][0]["message"]["content"] == "hello"
            assert it.fake.submits[-1].tenant == "acme"
            chunks = await ask(it, {"model": MODEL, "prompt": "x", "stream": True})
            text = "".join(orjson.loads(c)["choices"][0]["text"] for c in chunks[:-1])
            assert text == "hello"
            for wrong in (b"{", b"[1]", {"model": "no", "prompt": "x"}):
                (error,) = await ask(it, wrong)
                assert orjson.loads(error)["error"]["code"]

            theirs = TENANT_INFERENCE_SUBMIT.replace("*", "acme_20inc")
            whole, _ = await ask(it, CHAT, theirs)
            assert orjson.loads(whole)["choices"][0]["message"]["content"] == "hello"
            assert it.fake.submits[-1].tenant == "acme inc"
            *chunks, done, _ = await ask(it, CHAT | {"stream": True, "tenant": "acme inc"}, theirs)
            assert chunks and done == b"[DONE]"
            for other in ("default", "globex"):
                num_submits = len(it.fake.submits)
                for body in (CHAT, {"model": MODEL, "input": "x"}, {"model": MODEL, "query": "x"}):
                    error, _ = await ask(it, body | {"tenant": other}, theirs)
                    assert orjson.loads(error)["error"]["code"] == "wrong_tenant"
                assert len(it.fake.submits) == num_submits

    asyncio.run(scenario())


def test_a_taken_port_ends_the_start(nats_server: Server, redis_server: Server) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        config = FrontendConfig(
            nats_url=nats_server.url, redis_url=redis_server.url, http_port=port
        )

        async def scenario() -> None:
            async with running(main, config, "frontend"):
                raise AssertionError("it started")

        with pytest.raises(ConfigError, match=f"SYMPHONY_HTTP_PORT={port}"):
            asyncio.run(scenario())


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
FIELDS = sorted(
    [
        "messages",
        "prompt",
        "stream",
        "n",
        "stop",
        "max_tokens",
        "temperature",
        "logprobs",
        "top_logprobs",
        "echo",
        "seed",
        "logit_bias",
        "stop_token_ids",
        "stream_options",
        "session_id",
        "tools",
        "chat_template_kwargs",
        "best_of",
        "response_format",
        "cache_salt",
        "min_tokens",
        "suffix",
        "allowed_token_ids",
        "truncate_prompt_tokens",
        "truncation_side",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "continue_final_message",
        "regex",
    ]
)
bodies = st.dictionaries(st.sampled_from(FIELDS), values, max_size=4)
PATHS = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/v1/advisories"]


def test_no_body_is_a_server_error(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path) as it:
            await it.bus.serve(ADVISORY_SUBMIT, placed)
            await it.bus.flush()
            await asyncio.to_thread(fuzz, it.url)

    async def placed(advisory: m.Advisory) -> m.AdvisoryState:
        return m.AdvisoryState(session_id=advisory.session_id, state="placed")

    def fuzz(url: str) -> None:
        with httpx.Client(base_url=url, timeout=20, headers=JSON) as http:

            @given(st.sampled_from(PATHS), bodies, st.binary(max_size=20), st.booleans())
            @settings(
                max_examples=150,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                database=None,
            )
            def attack(path: str, body: dict[str, Any], junk: bytes, is_junk: bool) -> None:
                valid = {"model": MODEL, "messages": HI, "prompt": "x", "session_id": "s"}
                text = json.dumps(valid | body).encode()
                answer = http.post(path, content=junk if is_junk else text)
                assert answer.status_code in {200, 202, 400}, (answer.status_code, answer.text)

            attack()

    asyncio.run(scenario())
