"""The chat page in a real browser: one advisory a turn, a streamed reply, one session."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from shared import messages as m
from shared.subjects import ADVISORY_SUBMIT
from tests.conftest import Server
from tests.integration.frontend.house import House, Reply, eventually, house

playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SAID = "a reply of many \u00fcmlauts"


async def check_two_turns(it: House, page: Any, hold: asyncio.Event) -> None:
    advisories: list[m.Advisory] = []
    posted: list[str] = []
    failures: list[str] = []

    async def on_advisory(advisory: m.Advisory) -> m.AdvisoryState:
        advisories.append(advisory)
        return m.AdvisoryState(session_id=advisory.session_id, state="placed")

    await it.bus.serve(ADVISORY_SUBMIT, on_advisory)
    await it.bus.flush()
    page.on("request", lambda request: posted.append(f"{request.method} {request.url}"))
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.on("console", lambda line: failures.append(line.text) if line.type == "error" else None)
    await page.goto(it.url)
    await playwright.expect(page.locator("#model option")).to_have_count(1)

    await page.locator("#text").press("h")
    await eventually(lambda: len(advisories) == 1)
    assert not it.fake.submits
    await page.locator("#text").press_sequentially("ello there")
    await page.locator("#text").press("Enter")
    replies = page.locator(".assistant .bubble")
    await playwright.expect(replies).to_have_text(SAID[:8])  # the rest is still to come
    hold.set()
    await playwright.expect(replies).to_have_text(SAID)
    await playwright.expect(page.locator(".figures")).to_contain_text("tokens cached")

    await page.locator("#text").press_sequentially("and more")
    await page.locator("#text").press("Enter")
    await playwright.expect(page.locator(".figures").nth(1)).to_contain_text("tokens cached")
    assert len([line for line in posted if line == f"POST {it.url}/v1/advisories"]) == 2
    sessions = {submit.session_id for submit in it.fake.submits}
    assert len(it.fake.submits) == 2 and len(sessions) == 1 and None not in sessions
    assert {advisory.session_id for advisory in advisories} == sessions
    assert failures == []
    assert all(line.split()[1].startswith(it.url) for line in posted)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_page_advises_streams_and_keeps_its_session(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        hold = asyncio.Event()
        said = Reply(SAID, hold=hold, hold_at=8)
        async with (
            house(nats_server, redis_server, tmp_path, lambda _: said) as it,
            playwright.async_playwright() as driver,
        ):
            browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGS)
            await check_two_turns(it, await browser.new_page(), hold)
            await browser.close()

    asyncio.run(scenario())
