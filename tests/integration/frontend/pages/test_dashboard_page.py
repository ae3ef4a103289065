"""The dashboard in a browser."""

import asyncio
from pathlib import Path
from typing import Any

from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, Deployment, deployment
from tests.integration.frontend.pages.browser import ARGS, AXE, CHROMIUM, needs_chromium, playwright
from tests.integration.frontend.pages.test_dashboard import staff

# A name beside the longest that is told of anything, at a width where three lists are in a row.
NAME_BESIDE = """() => {
  const [name, told] = [document.createElement("dt"), document.createElement("dd")];
  name.textContent = "encoder";
  told.textContent = "8 jobs wait for a worker, up to 253.1 ms";
  document.querySelector("#windows").replaceChildren(name, told);
  document.querySelector("section:has(#windows)").hidden = false;
  const lines = document.createRange();
  lines.selectNodeContents(name);
  return lines.getClientRects().length;
}"""


TOPS = "[...document.querySelectorAll('.figure')].map((one) => one.getBoundingClientRect().top)"


async def no_violations(page: Any, where: str) -> None:
    if not AXE.is_file():
        return
    await page.evaluate(AXE.read_text())
    found = await page.evaluate("axe.run()")
    assert [each["id"] for each in found["violations"]] == [], where


@needs_chromium
def test_a_browser_shows_it(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    failures: list[str] = []

    def on_line(line: Any) -> None:
        if line.type == "error":
            failures.append(line.text)

    async def look(it: Deployment, page: Any) -> None:
        expect = playwright.expect
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.on("console", on_line)
        await page.goto(f"{it.url}/dashboard")
        await expect(page.locator("#workers td").first).to_have_text("w0")
        await expect(page.locator("#hosts")).to_contain_text("60 B of 100 B")
        await expect(page.locator("#state")).to_contain_text("processes are ready")
        body = {"model": MODEL, "prompt": "x", "max_tokens": 3}
        await it.http.post("/v1/completions", json=body)
        await expect(page.locator("#figures")).to_contain_text("ms")
        chart = page.get_by_role("img", name="Time to first token, the last ten minutes")
        await expect(chart.locator("text", has_text="ms")).to_have_count(3)  # on its axis
        await expect(chart.locator("text", has_text="now")).to_have_count(1)
        await page.set_viewport_size({"width": 1200, "height": 900})
        assert await page.evaluate(NAME_BESIDE) == 1, "lines of a name"

        await it.runtime.parts["app"].observability.feed.look()  # a view before the page's
        await page.reload()
        line = page.get_by_role("img", name="Tokens per second").locator("path.line.first")
        await expect(line).to_be_attached()  # of more than one point: the server had others
        await chart.hover()
        await expect(page.locator(".when").first).to_be_visible()
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme)
            for width, num_in_row in ((1200, 5), (390, 2)):
                await page.set_viewport_size({"width": width, "height": 900})
                tops = await page.evaluate(TOPS)
                assert {tops.count(top) for top in tops} == {num_in_row} and len(tops) == 10
                assert await page.evaluate("document.documentElement.scrollWidth") <= width
                await no_violations(page, f"{scheme}, {width}")
        assert failures == []

    async def run() -> None:
        async with (
            deployment(nats_server, redis_server, tmp_path) as it,
            playwright.async_playwright() as driver,
        ):
            await staff(it)
            browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGS)
            await look(it, await browser.new_page())
            await browser.close()

    asyncio.run(run())
