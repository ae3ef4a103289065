"""`symphony top` follows a deployment's events, through refusals and ends."""

import asyncio
from collections.abc import AsyncIterator
from io import StringIO
from typing import Any

import httpx
import orjson
import pytest
from rich.console import Console
from textual.widgets import Static

from cli.top import app as top_app
from cli.top import panels
from cli.top.app import PANELS, TopApp
from services.frontend.core.observability.deployment_view import Answers, DeploymentView
from shared.ids import HostId, TenantId, WorkerId
from shared.wire.messages import (
    HintRate,
    HintStatus,
    JobWindow,
    KvStats,
    SchedulerStatus,
    ServiceStatus,
    Throttled,
    WorkerStatus,
)


def view(state: str = "ready") -> dict[str, Any]:
    """As a frontend makes it, with somebody whose name is markup."""
    tenant = TenantId("[bold]x")
    hints = HintStatus(
        num_live=3,
        rates=[HintRate(tenant=tenant, hits=0.5, num_hints=2)],
        throttled=[Throttled(tenant=tenant, place="", retry_after_s=1, num_refused=9)],
    )
    worker = WorkerStatus(
        worker_id=WorkerId("h-w0"), host_id=HostId("h"), state="ready", models=["m"], num_pages=4,
        num_pages_free=1,
    )  # fmt: skip
    status = ServiceStatus(service="tracker", instance="0", pid=1, state=state, hints=hints)
    window = JobWindow(model="e/224", num_waiting=7, opens_in_ms=-1.5, closes_in_ms=2.25)
    deployment, p = DeploymentView(), {"process": "p"}
    for second, num in ((0, 1.0), (1, 2.0)):
        samples = [
            ("batches_total", {**p, "model": "e"}, num),
            ("batch_jobs_total", {**p, "model": "e"}, 8 * num),
            ("kv_staged_pages_total", {**p, "tier": "disk"}, num),
            ("kv_peer_bytes_total", {**p, "direction": "in"}, num * 1024**2),
            ("time_to_first_token_seconds_bucket", {**p, "le": "10.0"}, num),
            ("time_to_first_token_seconds_bucket", {**p, "le": "+Inf"}, num),
            ("prefix_cache_queries_total", {**p, "model": "m"}, 4 * num),
        ]
        answers = Answers(
            {"tracker-0": status},
            [SchedulerStatus(workers=[worker], windows=[window])],
            [KvStats(host_id="h")],
            samples,
        )
        told = deployment.on_answers(answers, second * 10**9, float(second))
    return told


def shown(name: str, of: dict[str, Any]) -> str:
    console = Console(file=StringIO(), width=200, legacy_windows=False)
    console.print(getattr(panels, name)(of))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_what_is_shown() -> None:
    texts = {name: shown(name, view()) for name in PANELS}
    assert "5.0 s first token" in texts["figures"] and "0% not computed" in texts["figures"]
    assert "h-w0" in texts["workers"] and "3 of 4" in texts["workers"]
    assert "answers" in texts["hosts"]
    parts = "[bold]x: used", "50%", "pages: disk", "1.0 MiB/s", "8.0/s by 8.0", "none"
    for part in (*parts, "7 jobs, in 0 to"):
        assert part in texts["lately"], part


class Events(httpx.AsyncByteStream):
    def __init__(self, events: list[bytes]) -> None:
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for event in self._events:
            yield b"data: " + event + b"\n\n"


async def until(app: TopApp, text: str) -> None:
    async with asyncio.timeout(20):
        while text not in str(app.query_one("#status", Static).content):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_it_goes_on_through_refusals_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_app, "RETRY_S", 0.3)
    answers = iter(
        [
            httpx.Response(403, json={"error": {"message": "no scope 'metrics'"}}),
            httpx.Response(200, stream=Events([orjson.dumps(view())])),
            httpx.Response(502, text="bad gateway"),
            httpx.Response(200, stream=Events([orjson.dumps(view("draining"))])),
        ]
    )
    asked: list[str] = []
    seen = asyncio.Semaphore(1)  # of what is shown: the next answer would take its place

    async def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        await seen.acquire()
        try:
            return next(answers)
        except StopIteration:
            raise httpx.ConnectError("gone") from None

    async def scenario() -> None:
        transport = httpx.MockTransport(handle)
        app = TopApp(httpx.AsyncClient(transport=transport, base_url="http://house"))
        async with app.run_test() as pilot:
            for text in ("no scope 'metrics'", "ended it", "HTTP 502", "ended it", "ConnectError"):
                await until(app, text)
                seen.release()
            await pilot.press("q")
        assert asked[0] == "/v1/house/events" and len(asked) >= 5

    asyncio.run(scenario())


def test_it_stands_still_when_asked() -> None:
    async def scenario() -> None:
        async def handle(_: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("gone")

        transport = httpx.MockTransport(handle)
        app = TopApp(httpx.AsyncClient(transport=transport, base_url="http://house"))
        show = app._show
        async with app.run_test() as pilot:
            show(view())
            await pilot.pause()
            await pilot.press("space")
            show(view("draining"))
            assert "draining" not in str(app.query_one("#status", Static).content)
            await pilot.press("space")
            show(view("draining"))
            assert "not ready: tracker-0" in str(app.query_one("#status", Static).content)

    asyncio.run(scenario())
