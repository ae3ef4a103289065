"""Two tenants at one frontend: one at its limits, the other served."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from services.frontend.core.limits.quotas import RELEASED_S
from shared.bus import Bus
from shared.errors import InvalidRequest
from shared.ids import SessionId, TenantId
from shared.wire import messages as m
from shared.wire.subjects import ADVISORY_SUBMIT, INFERENCE_SUBMIT, TENANT_ADVISORY_SUBMIT
from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, Deployment, Reply, deployment, eventually
from tests.integration.frontend.job_deployment import job_deployment
from tests.integration.harness import client_of

LIMITS = {
    "turns": 2, "waiting_tokens": 100, "jobs": 3, "job_bytes": 100_000, "sessions": 2,
    "priority": [-1, 1],
}  # fmt: skip
SMALL_SUBMIT = "symphony.tenant.small.inference.submit"
KEYS: list[dict[str, Any]] = [
    {"key": "a", "tenant": "small", "limits": LIMITS},
    {"key": "a2", "tenant": "small"},
    {"key": "b", "tenant": "large"},
]


class Gate:
    """Replies that wait, if they are to, before their first token or behind it."""

    def __init__(self) -> None:
        self.hold_at: int | None = None
        self.opened = asyncio.Event()

    def reply(self, _: m.Prompt) -> Reply:
        if self.hold_at is None:
            return Reply()
        return Reply(hold=self.opened, hold_at=self.hold_at)


@asynccontextmanager
async def two_tenants(
    nats_server: Server, redis_server: Server, folder: Path, gate: Gate, **settings: Any
) -> AsyncIterator[Deployment]:
    keys = folder / "keys.json"
    keys.write_text(json.dumps(KEYS))
    more = {"api_keys_file": keys, "resubmit_silent_s": 600, "resubmit_unpulled_s": 600, **settings}
    async with deployment(nats_server, redis_server, folder, gate.reply, **more) as it:
        yield it


async def complete(it: Deployment, key: str, prompt: str = "x", **more: Any) -> httpx.Response:
    return await it.http.post(
        "/v1/completions",
        json={"model": MODEL, "prompt": prompt, **more},
        headers={"Authorization": f"Bearer {key}"},
    )


async def over_nats(bus: Bus, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    """The error that a request is answered with."""
    answer = await client_of(bus).request(subject, orjson.dumps(body), timeout=20)
    error: dict[str, Any] = orjson.loads(answer.data)["error"]
    return error


def assert_refused(answer: httpx.Response, limit: str) -> None:
    assert answer.status_code == 429, answer.text
    assert int(answer.headers["retry-after"]) >= 1
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("tenant_quota", "rate_limit_error")
    assert limit in error["message"]


def test_one_is_at_its_limit_and_the_other_served(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        gate = Gate()
        async with two_tenants(nats_server, redis_server, tmp_path, gate) as it:
            gate.hold_at = 0
            long = asyncio.create_task(complete(it, "a", "y" * 80))
            await eventually(lambda: len(it.fake.prompts) == 1)
            assert_refused(await complete(it, "a", "y" * 30), "waiting_tokens")
            other = asyncio.create_task(complete(it, "a2"))
            await eventually(lambda: len(it.fake.prompts) == 2)
            assert_refused(await complete(it, "a2"), "turns")
            assert len(it.fake.prompts) == 2

            gate.hold_at = None
            for _ in range(3):
                assert (await complete(it, "b", "y" * 300, n=3)).status_code == 200
            gate.opened.set()
            assert (await long).status_code == (await other).status_code == 200
            for _ in range(3):
                assert (await complete(it, "a", n=2)).status_code == 200
            for body in ({"n": 3}, {"prompt": "y" * 101}):
                answer = await complete(it, "a", **body)
                assert (answer.status_code, answer.json()["error"]["code"]) == (400, "tenant_quota")

    asyncio.run(scenario())


def test_a_turn_with_a_token_waits_no_more(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        gate = Gate()
        async with two_tenants(nats_server, redis_server, tmp_path, gate) as it:
            gate.hold_at = 1
            headers = {"Authorization": "Bearer a"}
            body = {"model": MODEL, "prompt": "y" * 80, "stream": True}
            async with it.http.stream(
                "POST", "/v1/completions", json=body, headers=headers
            ) as answer:
                await anext(answer.aiter_lines())
                gate.hold_at = None
                assert (await complete(it, "a", "y" * 80)).status_code == 200
            await eventually(lambda: bool(it.fake.cancels))
            assert (await complete(it, "a", n=2)).status_code == 200, "a client gone takes nothing"

    asyncio.run(scenario())


def test_own_sessions_leave_and_the_others_stay(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def known(it: Deployment, key: str) -> list[str]:
        headers = {"Authorization": f"Bearer {key}"}
        answers = [(s, await it.http.get(f"/v1/sessions/{s}", headers=headers)) for s in "123"]
        return [session for session, answer in answers if answer.status_code == 200]

    async def scenario() -> None:
        async with two_tenants(nats_server, redis_server, tmp_path, Gate()) as it:
            for key in ("b", "a"):
                for session in "12132":
                    assert (await complete(it, key, session_id=session)).status_code == 200
            assert await known(it, "a2") == ["2", "3"]
            assert await known(it, "b") == ["1", "2", "3"]

    asyncio.run(scenario())


def test_how_long_kv_is_kept_goes_to_the_worker(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with two_tenants(
            nats_server, redis_server, tmp_path, Gate(), tenant_kv_expiry_s=600
        ) as it:
            release = {"action_id": "a", "action_type": "kv.release", "action_version": "1.0"}
            hints = {"protocol_version": "0.1", "message_id": "m", "actions": [release]}
            for asked, told in (
                ({}, 600),
                ({"kv_expiry_s": 60}, 60),
                ({"kv_hints": hints}, RELEASED_S),
            ):
                answer = await complete(it, "b", session_id="s", **asked)
                assert answer.status_code == 200, answer.text
                assert it.fake.prompts[-1].expiry_s == told
            answer = await complete(it, "b", session_id="s", kv_expiry_s=601)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "kv_expiry_s"

    asyncio.run(scenario())


def test_priorities_have_a_range(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_tenants(
            nats_server, redis_server, tmp_path, Gate(), tenant_priority=(2, 5)
        ) as it:
            heard: list[m.Advisory] = []

            async def submit(advisory: m.Advisory) -> m.AdvisoryState:
                heard.append(advisory)
                return m.AdvisoryState(session_id=advisory.session_id, state="placed")

            async def announce(key: str, **more: Any) -> int:
                headers = {"Authorization": f"Bearer {key}"}
                body = {"session_id": "s", **more}
                return (
                    await it.http.post("/v1/advisories", json=body, headers=headers)
                ).status_code

            await it.bus.serve(ADVISORY_SUBMIT, submit)
            for key, asked, status in (("a", 2, 400), ("a", 1, 200), ("b", 5, 200), ("b", 1, 400)):
                answer = await complete(it, key, priority=asked)
                assert answer.status_code == status, answer.text
                if status == 400:
                    error = answer.json()["error"]
                    assert error["param"] == "priority" and " to " in error["message"]
                else:
                    assert it.fake.submits[-1].priority == asked
                assert await announce(key, priority=asked) == (202 if status == 200 else status)
            await complete(it, "b")
            assert it.fake.submits[-1].priority == 2
            assert await announce("b") == 202
            assert heard[-1].priority == 2

            advisory = m.Advisory(session_id=SessionId("s"), priority=2)
            with pytest.raises(InvalidRequest) as caught:
                await it.bus.request(TENANT_ADVISORY_SUBMIT, advisory, "small")
            assert caught.value.param == "priority"
            own = replace(advisory, priority=0)
            await it.bus.request(TENANT_ADVISORY_SUBMIT, own, "small")
            assert (heard[-1].tenant, heard[-1].priority) == ("small", 0)
            with pytest.raises(InvalidRequest) as caught:
                await it.bus.request(
                    TENANT_ADVISORY_SUBMIT, replace(own, tenant=TenantId("large")), "small"
                )
            assert caught.value.code == "wrong_tenant"
            unsaid = m.Advisory(session_id=SessionId("s"))
            await it.bus.request(TENANT_ADVISORY_SUBMIT, unsaid, "large")
            assert (heard[-1].tenant, heard[-1].priority) == ("large", 2)

            body = {"model": MODEL, "prompt": "x", "priority": 9}
            assert (await over_nats(it.bus, INFERENCE_SUBMIT, body))["param"] == "priority"
            body["priority"] = 2
            assert (await over_nats(it.bus, SMALL_SUBMIT, body))["param"] == "priority"
            body |= {"priority": 1, "n": 3}
            assert (await over_nats(it.bus, SMALL_SUBMIT, body))["code"] == "tenant_quota"

    asyncio.run(scenario())


def test_inputs_of_one_leave_room_to_the_other(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def embed(http: httpx.AsyncClient, key: str, texts: list[str]) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"}
        return await http.post(
            "/v1/embeddings", json={"model": "emb", "input": texts}, headers=headers
        )

    async def scenario() -> None:
        keys = tmp_path / "keys.json"
        keys.write_text(json.dumps(KEYS))
        async with job_deployment(
            nats_server, redis_server, tmp_path, "b", api_keys_file=keys, jobs_max=10
        ) as it:
            it.hold = asyncio.Event()
            asking = asyncio.create_task(embed(it.http, "a", ["w1", "w2"]))
            await eventually(lambda: len(it.jobs()) == 2)
            assert_refused(await embed(it.http, "a2", ["w1", "w2"]), "jobs")
            other = asyncio.create_task(embed(it.http, "b", ["w1"] * 8))
            await eventually(lambda: len(it.jobs()) == 10)
            full = await embed(it.http, "b", ["w1"])
            assert (full.status_code, full.json()["error"]["code"]) == (429, "rate_limit_exceeded")
            it.hold.set()
            assert (await asking).status_code == (await other).status_code == 200
            assert (await embed(it.http, "a", ["w1"] * 3)).status_code == 200
            for texts in (["w1"] * 4, ["w" * 100_000]):
                answer = await embed(it.http, "a", texts)
                assert (answer.status_code, answer.json()["error"]["code"]) == (400, "tenant_quota")
            assert (await embed(it.http, "b", ["w" * 100_000])).status_code == 400
            for texts in (["w1"] * 4, ["w" * 100_000]):
                body = {"model": "emb", "input": texts}
                error = await over_nats(it.bus, SMALL_SUBMIT, body)
                assert error["code"] == "tenant_quota"

    asyncio.run(scenario())
