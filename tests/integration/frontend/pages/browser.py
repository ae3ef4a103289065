"""The chat page in a real browser, on a deployment that says what a test scripts."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shared.wire import messages as m
from shared.wire.subjects import ADVISORY_INVALIDATE, ADVISORY_SUBMIT
from tests.conftest import Server
from tests.integration.frontend.deployment import Deployment, Reply, deployment

playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
expect = playwright.expect
expect.set_options(timeout=20_000)  # two cores run all of it
ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ROOT = Path(__file__).parents[4]
AXE = Path(os.environ.get("AXE_PATH") or ROOT / "node_modules" / "axe-core" / "axe.min.js")
Servers = tuple[Server, Server, Path]


@dataclass
class Visit:
    """A browser at the page.

    Attributes:
        replies: what the model says, turn by turn; the last one again and again.
        complaints: what the browser's console tells of errors, and exceptions nobody caught.
        excused: parts of complaints that a test brings about.
        requests: what the pages sent.
    """

    it: Deployment
    browser: Any
    replies: list[Reply]
    advisories: list[m.Advisory] = field(default_factory=list)
    taken_back: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    excused: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    async def context(self, **options: Any) -> Any:
        """A user of their own."""
        context = await self.browser.new_context(**options)
        context.set_default_timeout(10_000)
        return context

    async def page(self, context: Any = None, path: str = "/", url: str = "") -> Any:
        """A tab, when its models are there."""
        page = await (context or await self.context()).new_page()
        self.listen(page)
        await page.goto((url or self.it.url) + path)
        await expect(page.locator("#model option").first).to_be_attached()
        return page

    def listen(self, page: Any) -> None:
        """Hear what goes wrong in a tab."""
        page.on("request", lambda request: self.requests.append(f"{request.method} {request.url}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on(
            "console",
            lambda line: self.complaints.append(line.text) if line.type == "error" else None,
        )

    def next_reply(self) -> Reply:
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


async def say(page: Any, text: str) -> None:
    """Type and send."""
    await page.locator("#text").press_sequentially(text)
    await page.locator("#text").press("Enter")


async def answered(page: Any, number: int) -> None:
    """Until so many answers are over."""
    await expect(page.locator(".assistant:not(.running)")).to_have_count(number)
    await expect(page.locator("#send")).to_be_enabled()


def visiting(
    servers: Servers,
    scenario: Callable[[Visit], Awaitable[None]],
    *replies: Reply,
    **settings: Any,
) -> None:
    """Run a scenario; the browser has nothing to complain of but what it excuses."""

    async def run() -> None:
        said = list(replies) or [Reply()]
        async with (
            deployment(*servers, lambda _: visit.next_reply(), **settings) as it,
            playwright.async_playwright() as driver,
        ):
            browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGS)
            visit = Visit(it, browser, said)
            await serve_advisories(visit)
            await scenario(visit)
            await browser.close()
        excused = ("net::ERR_ABORTED", *visit.excused)
        left = [line for line in visit.complaints if not any(part in line for part in excused)]
        assert left == [], left

    asyncio.run(run())


async def serve_advisories(visit: Visit) -> None:
    async def on_advisory(advisory: m.Advisory) -> m.AdvisoryState:
        visit.advisories.append(advisory)
        return m.AdvisoryState(session_id=advisory.session_id, state="placed")

    async def on_invalidate(key: m.AdvisoryKey) -> m.AdvisoryState:
        visit.taken_back.append(key.session_id)
        return m.AdvisoryState(session_id=key.session_id, state="invalidated")

    await visit.it.bus.serve(ADVISORY_SUBMIT, on_advisory)
    await visit.it.bus.serve(ADVISORY_INVALIDATE, on_invalidate)
    await visit.it.bus.flush()


class Cable:
    """The network between a browser and the deployment, which can be pulled out."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self.is_out = False
        self.url = ""

    def pull(self) -> None:
        """Every connection ends at once, and no new one is made."""
        self.is_out = True
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        if self.is_out:
            to_near.transport.abort()
            return
        far, to_far = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {to_near, to_far}
        await asyncio.gather(_copy(near, to_far), _copy(far, to_near))
        self._writers -= {to_near, to_far}


@asynccontextmanager
async def cable(it: Deployment) -> AsyncIterator[Cable]:
    """One to the deployment, at an address of its own."""
    made = Cable(int(it.url.rpartition(":")[2]))
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        made.pull()
        server.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await source.read(65_536):
            sink.write(data)
            await sink.drain()
    sink.close()
