"""The chat page when something goes wrong: nothing is lost, and it says what to do."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, Reply, eventually
from tests.integration.frontend.pages.browser import (
    Servers,
    Visit,
    answered,
    cable,
    expect,
    needs_chromium,
    say,
    visiting,
)

pytestmark = needs_chromium

HOUR = "01:00:00"
ASLEEP = "The connection was lost while this tab was asleep."


@pytest.fixture
def servers(nats_server: Server, redis_server: Server, tmp_path: Path) -> Servers:
    return nats_server, redis_server, tmp_path


def test_an_hour_asleep(servers: Servers) -> None:
    hold = asyncio.Event()

    async def scenario(visit: Visit) -> None:
        context = await visit.context()
        await context.clock.install()
        page = await visit.page(context)
        await say(page, "hello")
        await expect(page.locator(".assistant .bubble")).to_have_text("go")
        await page.clock.fast_forward(HOUR)
        await page.clock.run_for(20_000)
        await answered(page, 1)
        await expect(page.locator(".notice")).to_have_text(f"The answer broke off. {ASLEEP}")
        await expect(page.locator(".assistant .bubble")).to_have_text("go")
        await page.get_by_role("button", name="Try again").click()
        await expect(page.locator(".assistant .bubble")).to_have_text("good")

    visiting(servers, scenario, Reply("good", hold=hold, hold_at=2), Reply("good"))


def test_the_network_is_gone_in_mid_stream(servers: Servers) -> None:
    hold = asyncio.Event()

    async def scenario(visit: Visit) -> None:
        visit.excused.append("net::ERR_")
        async with cable(visit.it) as line:
            page = await visit.page(url=line.url)
            await say(page, "hello")
            await expect(page.locator(".assistant .bubble")).to_have_text("go")
            line.pull()
            await expect(page.locator(".notice")).to_contain_text("The connection was lost.")
            await say(page, "are you there?")
            notice = page.locator(".notice").last
            await expect(notice).to_have_text("Not answered. The server cannot be reached.")
            await answered(page, 2)
            line.is_out = False
            await page.reload()
            await page.get_by_role("button", name="Try again").click()
            await expect(page.locator(".assistant .bubble")).to_have_text(["go", "yes"])
            await answered(page, 2)

            line.pull()  # an edit that fails costs nothing of what was said
            await page.get_by_role("button", name="Edit message").first.click()
            box = page.get_by_label("Your message, changed")
            await box.fill("other")
            await box.press("Control+Enter")
            await expect(page.locator(".user .bubble")).to_have_text(["other"])
            await answered(page, 1)
            await page.get_by_role("button", name="Put back").click()
            said = page.locator(".user .bubble")
            await expect(said).to_have_text(["hello", "are you there?"])
            await expect(page.locator(".assistant .bubble")).to_have_text(["go", "yes"])

    visiting(servers, scenario, Reply("good", hold=hold, hold_at=2), Reply("yes"))


def test_sent_twice_it_is_one_turn(servers: Servers) -> None:
    async def scenario(visit: Visit) -> None:
        page = await visit.page()
        await page.locator("#text").fill("hello")
        await page.locator("#send").dblclick()
        await answered(page, 1)
        await page.locator("#text").fill("again")
        await page.evaluate(
            """() => { for (let i = 0; i < 3; i += 1) {
                document.getElementById("form").requestSubmit();
                document.getElementById("text").dispatchEvent(
                    new KeyboardEvent("keydown", { key: "Enter", cancelable: true })); } }"""
        )
        await answered(page, 2)
        assert len(visit.it.fake.submits) == 2
        await expect(page.locator(".notice")).to_have_count(0)
        assert visit.it.fake.cancels == []

    visiting(servers, scenario)


def test_two_tabs_on_one_session(servers: Servers) -> None:
    hold, second = asyncio.Event(), asyncio.Event()

    async def scenario(visit: Visit) -> None:
        context = await visit.context()
        one = await visit.page(context)
        await say(one, "first")
        await expect(one.locator(".assistant .bubble")).to_have_text("an")
        other = await visit.page(context, f"/#{await one.evaluate('location.hash.slice(1)')}")
        await expect(other.locator("#notice")).to_contain_text("in another tab")
        await expect(other.locator("#send")).to_be_disabled()
        hold.set()
        await expect(other.locator(".assistant .bubble")).to_have_text("answer")
        await expect(other.locator("#notice")).not_to_be_visible()

        for page, text in ((one, "of one"), (other, "of the other")):
            await page.locator("#text").fill(text)
        await asyncio.gather(
            *(page.evaluate("document.getElementById('form').requestSubmit()")
              for page in (one, other))
        )  # fmt: skip
        await eventually(lambda: len(visit.it.fake.submits) == 2)
        second.set()
        for page in (one, other):
            await answered(page, 2)
        drafts = [await page.locator("#text").input_value() for page in (one, other)]
        said = await one.locator(".user .bubble").all_text_contents()
        assert sorted([said[1], *drafts]) == ["", "of one", "of the other"]
        assert await other.locator(".user .bubble").all_text_contents() == said
        assert len(visit.it.fake.submits) == 2

        await one.get_by_role("button", name="Delete first").click()
        await one.get_by_role("button", name="Delete", exact=True).click()
        await expect(other.locator("#notice")).to_contain_text("deleted in another tab")
        await expect(other.locator("#list a")).to_have_count(0)

    replies = Reply("answer", hold=hold, hold_at=2), Reply("answer", hold=second, hold_at=2)
    visiting(servers, scenario, *replies)


def test_a_tab_that_is_closed_leaves_its_chat_free(servers: Servers) -> None:
    hold = asyncio.Event()

    async def scenario(visit: Visit) -> None:
        context = await visit.context()
        one = await visit.page(context)
        await say(one, "first")
        await expect(one.locator(".assistant .bubble")).to_have_text("an")
        path = f"/#{await one.evaluate('location.hash.slice(1)')}"
        await one.close()
        other = await visit.page(context, path)
        await expect(other.locator(".notice")).to_contain_text("closed before the answer was over")
        await other.get_by_role("button", name="Try again").click()
        await expect(other.locator(".assistant .bubble")).to_have_text("answer")
        await answered(other, 1)
        await other.get_by_role("button", name="Edit message").click()  # and sends it as it was
        await other.get_by_label("Your message, changed").press("Control+Enter")
        await eventually(lambda: len(visit.it.fake.submits) == 3)
        await answered(other, 1)
        await expect(other.locator(".user .bubble")).to_have_text("first")

    visiting(servers, scenario, Reply("answer", hold=hold, hold_at=2), Reply("answer"))


def test_a_hundred_thousand_characters(servers: Servers) -> None:
    async def scenario(visit: Visit) -> None:
        visit.excused.append("400")
        page = await visit.page()
        await page.locator("#text").evaluate(
            """(box) => { box.focus();
                document.execCommand("insertText", false, "many words ".repeat(9_091)); }"""
        )
        await eventually(lambda: len(visit.advisories) == 1)
        await page.locator("#text").press("Enter")
        await answered(page, 1)
        notice = page.locator(".notice")
        await expect(notice).to_contain_text("Not answered.")
        await expect(notice).to_contain_text("512")  # the server's own words
        bubble = page.locator(".user .bubble")
        assert len(await bubble.text_content()) > 100_000
        assert (await bubble.bounding_box())["height"] < 300
        await page.get_by_role("button", name="Show all").click()
        assert (await bubble.bounding_box())["height"] > 3_000
        await say(page, "short")  # what was not answered is not in the way
        await expect(page.locator(".assistant .bubble").last).to_have_text("hello")

    visiting(servers, scenario)


def test_an_adapter_is_removed_while_it_is_chosen(servers: Servers) -> None:
    async def scenario(visit: Visit) -> None:
        visit.excused.append("404")
        entry = (await visit.it.http.get("/v1/models")).json()["data"][0]
        served = [entry, entry | {"id": "fox", "parent": MODEL}]

        async def models(route: Any) -> None:
            body = json.dumps({"object": "list", "data": served})
            await route.fulfill(content_type="application/json", body=body)

        context = await visit.context()
        await context.route("**/v1/models", models)
        page = await visit.page(context)
        await page.locator("#model").select_option("fox")
        served.pop()  # and the deployment never knew it
        await say(page, "hello")
        await expect(page.locator(".notice")).to_contain_text("fox")
        await expect(page.locator("#model option:checked")).to_have_text("fox (not served now)")
        await page.get_by_role("button", name="Try again").click()
        await expect(page.locator("#notice")).to_contain_text("choose another")
        await expect(page.locator("#model")).to_be_focused()
        await page.locator("#model").select_option(MODEL)
        await page.get_by_role("button", name="Try again").click()
        await expect(page.locator(".assistant .bubble")).to_have_text("hello")
        await expect(page.locator("#notice")).not_to_be_visible()

    visiting(servers, scenario)


FULL = """IDBObjectStore.prototype.put = () => {
    throw new DOMException("no room", "QuotaExceededError"); };
Storage.prototype.setItem = IDBObjectStore.prototype.put;"""


def test_a_full_storage_ends_no_chat(servers: Servers) -> None:
    async def scenario(visit: Visit) -> None:
        for script, why in ((FULL, "storage is full"), ("delete window.indexedDB", "refuses")):
            context = await visit.context()
            await context.add_init_script(script)
            if "delete" in script:
                await context.add_init_script(
                    "Object.defineProperty(window, 'indexedDB', { value: undefined })"
                )
            page = await visit.page(context)
            for number, text in enumerate(("one", "two"), 1):
                await say(page, text)
                await answered(page, number)
            await expect(page.locator("#notice")).to_contain_text(why)
            await expect(page.locator("#list a")).to_have_text(["one"])
            await page.locator("#settings-open").click()
            await page.get_by_label("Temperature").fill("1")
            await page.get_by_role("button", name="Save").click()
            await page.locator("#new").click()
            await page.locator("#list a").click()
            await expect(page.locator(".user .bubble")).to_have_text(["one", "two"])

    visiting(servers, scenario)
