"""The dashboard and what it shows, over HTTP and in a browser."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from services.frontend.core.observability import deployment_history
from services.frontend.observability import deployment_feed as watching
from shared.ids import HostId, WorkerId
from shared.wire import messages as m
from shared.wire.subjects import KV_STATS, SCHEDULER_STATUS
from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, Deployment, deployment
from tests.integration.harness import eventually_answers

Servers = tuple[Server, Server, Path]
WORKER = m.WorkerStatus(
    worker_id=WorkerId("h-w0"), host_id=HostId("h"), state="ready", models=[MODEL], num_pages=100,
    num_pages_free=40,
)  # fmt: skip


@pytest.fixture
def servers(nats_server: Server, redis_server: Server, tmp_path: Path) -> Servers:
    return nats_server, redis_server, tmp_path


async def staff(it: Deployment) -> None:
    """A scheduler and a kvstore that answer."""

    async def status(_: m.Empty) -> m.SchedulerStatus:
        return m.SchedulerStatus(workers=[WORKER], process="scheduler-0")

    async def stats(_: m.Empty) -> m.KvStats:
        return m.KvStats(
            host_id="h", num_sessions=5, arena_bytes_max={"4096": 100}, arena_bytes_used=60
        )

    await it.bus.serve(SCHEDULER_STATUS, status)
    await it.bus.serve(KV_STATS, stats)
    await it.bus.flush()


async def view_of(it: Deployment) -> dict[str, Any]:
    """The view now, of those that answered in time."""
    view: dict[str, Any] = (await it.http.get("/v1/house")).json()
    return view


def is_of_all(view: dict[str, Any]) -> bool:
    """Whether scheduler, kvstore and frontend answered in time."""
    return bool(view["workers"] and view["hosts"] and view["services"])


def test_it_is_told_once_and_again_and_again(servers: Servers) -> None:
    async def run() -> None:
        async with deployment(*servers) as it:
            await staff(it)
            view = await eventually_answers(lambda: view_of(it), is_of_all)
            assert view["sessions"] == 5 and view["models"] == [MODEL]
            assert [worker["worker_id"] for worker in view["workers"]] == ["h-w0"]
            assert [host["host_id"] for host in view["hosts"]] == ["h"]
            (frontend,) = view["services"]
            assert frontend["service"] == "frontend" and frontend["state"] == "ready"

            paths = (await it.http.get("/openapi.json")).json()["paths"]
            told = paths["/v1/house/events"]["get"]["responses"]["200"]["content"]
            assert list(told) == ["text/event-stream"], "and nothing else"

            body = {"model": MODEL, "prompt": "x", "max_tokens": 3}
            seen = []
            async with it.http.stream("GET", "/v1/house/events") as events:
                assert events.headers["content-type"].startswith("text/event-stream")
                async for line in events.aiter_lines():
                    if line.startswith("data: "):
                        seen.append(json.loads(line.removeprefix("data: ")))
                        await it.http.post("/v1/completions", json=body)
                    if len(seen) == 3:
                        break
            assert seen[0]["at"] < seen[1]["at"] < seen[2]["at"]
            assert seen[2]["rates"]["requests"] > 0
            assert seen[2]["latency_ms"]["ttft"]["p50"] > 0

    asyncio.run(run())


def test_history_is_kept_without_viewers(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "STEP_S", 0.05)
    monkeypatch.setattr(deployment_history, "STEP_S", 1.0)

    async def run() -> None:
        async with deployment(*servers) as it:
            await staff(it)

            async def history() -> dict[str, Any]:
                kept: dict[str, Any] = (await it.http.get("/dashboard/history")).json()
                return kept

            kept = await eventually_answers(history, lambda kept: len(kept["at"]) >= 3)
            assert kept["at"] == sorted(kept["at"])
            assert {len(column) for name, column in kept.items() if name != "step_s"} == {
                len(kept["at"])
            }

    asyncio.run(run())


def test_viewers_have_a_limit_and_leave(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "VIEWERS_OF_TENANT", 1)

    async def run() -> None:
        async with deployment(*servers) as it:
            async with it.http.stream("GET", "/v1/house/events") as events:
                await anext(events.aiter_lines())
                refused = await it.http.get("/v1/house/events")
                assert refused.status_code == 429 and "watch already" in refused.text

            async def is_free() -> bool:
                async with it.http.stream("GET", "/v1/house/events") as events:
                    return events.status_code == 200

            await eventually_answers(is_free, bool)

    asyncio.run(run())


def test_keys_protect_it_and_show_each_tenant_its_own(servers: Servers) -> None:
    keys = servers[2] / "keys.json"
    keys.write_text(
        json.dumps(
            [
                {"key": "a", "tenant": "a"},
                {"key": "root", "tenant": "b", "scopes": ["admin"]},
                {"key": "talk", "tenant": "a", "scopes": ["inference"]},
            ]
        )
    )

    async def run() -> None:
        async with deployment(*servers, api_keys_file=keys) as it:
            hints = m.HintStatus(rates=[m.HintRate(tenant="b", hits=1.0, num_hints=3)])  # type: ignore[arg-type]
            it.runtime.hints = lambda: hints
            for path in ("/dashboard", "/v1/house", "/v1/house/events", "/dashboard/history"):
                assert (await it.http.get(path)).status_code == 401
                talk = {"Authorization": "Bearer talk"}
                assert (await it.http.get(path, headers=talk)).status_code == 403
            asks = (await it.http.get("/dashboard")).headers["www-authenticate"]
            assert asks.startswith("Basic"), "a browser asks its user"
            for key, num_shown in (("a", 0), ("root", 1)):
                answer = await it.http.get("/v1/house", headers={"Authorization": f"Bearer {key}"})
                assert len(answer.json()["advisories"]["rates"]) == num_shown
            page = await it.http.get("/dashboard", headers={"Authorization": "Bearer a"})
            assert "default-src 'self'" in page.headers["content-security-policy"]

    asyncio.run(run())


def test_a_viewer_does_not_keep_the_service_from_stopping(servers: Servers) -> None:
    async def run() -> None:
        async with (
            deployment(*servers, drain_s=30.0) as it,
            it.http.stream("GET", "/v1/house/events") as events,
        ):
            lines = events.aiter_lines()
            await anext(lines)
            async with asyncio.timeout(10):
                it.runtime.stopping.set()
                assert [line async for line in lines][-1] == ""

    asyncio.run(run())
