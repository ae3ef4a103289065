"""The chat page in a real browser: hints, streamed answers, and what can be done with them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from shared.wire import messages as m
from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, Reply, eventually
from tests.integration.frontend.pages.browser import (
    AXE,
    Servers,
    Visit,
    answered,
    expect,
    needs_chromium,
    say,
    visiting,
)

pytestmark = needs_chromium

SAID = "a reply of many \u00fcmlauts"
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
TOOLS = json.dumps([{"type": "function", "function": {"name": "weather", "parameters": {}}}])
RICH = """# Top

Some **bold** text, `code`, and <script>document.title = "stolen"</script>
<img src=x onerror="document.title = 'stolen'">

[bad](javascript:document.title='stolen') ![pixel](http://evil.example/p.png)

```python
print("<b>")
```

| a | b |
|---|---|
| 1 | 2 |
"""


@pytest.fixture
def servers(nats_server: Server, redis_server: Server, tmp_path: Path) -> Servers:
    return nats_server, redis_server, tmp_path


def test_the_page_advises_streams_and_keeps_its_session(servers: Servers) -> None:
    hold = asyncio.Event()

    async def scenario(visit: Visit) -> None:
        page = await visit.page()
        fake = visit.it.fake
        await page.locator("#text").press("h")
        await eventually(lambda: len(visit.advisories) == 1)
        await expect(page.locator("#hint")).to_have_text("prefetching")
        assert not fake.submits
        await page.locator("#text").press_sequentially("ello there")
        await page.locator("#text").press("Enter")
        replies = page.locator(".assistant .bubble")
        await expect(replies).to_have_text(SAID[:8])  # the rest is still to come
        hold.set()
        await expect(replies).to_have_text(SAID)
        figures = page.locator(".figures")
        await expect(figures).to_contain_text("1 in the worker's KV pool, 2 on disk")
        await expect(figures).to_contain_text("ahead")
        await expect(figures).to_contain_text("first token")
        await expect(page.locator("#live")).to_contain_text(SAID)

        await expect(page.locator("#hint")).to_have_text("")
        await page.locator("#skip").press("Enter")
        await expect(page.locator("#text")).to_be_focused()
        await say(page, "and more")
        await expect(figures.nth(1)).to_contain_text("on disk")
        sent = [line for line in visit.requests if line.endswith("/v1/advisories")]
        assert sent == [f"POST {visit.it.url}/v1/advisories"] * 2
        sessions = {submit.session_id for submit in fake.submits}
        assert len(fake.submits) == 2 and len(sessions) == 1 and None not in sessions
        assert {advisory.session_id for advisory in visit.advisories} == sessions
        assert all(line.split()[1].startswith(visit.it.url) for line in visit.requests)

        await page.reload()  # all of it is kept
        await expect(page.locator(".assistant .bubble")).to_have_text([SAID, SAID])
        await expect(page.locator("#list a")).to_have_text(["hello there"])
        await expect(page.locator("#title")).to_have_text("hello there")
        await page.locator("#text").fill("x")
        await eventually(lambda: len(visit.advisories) == 3)
        await page.goto("about:blank")  # the page is left
        await eventually(lambda: visit.taken_back == list(sessions))

    visiting(servers, scenario, Reply(SAID, hold=hold, hold_at=8), Reply(SAID))


def test_what_a_model_writes_is_shown_and_does_nothing(servers: Servers) -> None:
    async def scenario(visit: Visit) -> None:
        page = await visit.page()
        await say(page, "<script>document.title = 'stolen'</script>")
        await answered(page, 1)
        bubble = page.locator(".assistant .bubble")
        await expect(bubble.locator("strong")).to_have_text("bold")
        await expect(bubble.locator("h3")).to_have_text("Top")
        await expect(bubble.locator("pre code")).to_have_text('print("<b>")')
        await expect(bubble.locator("td")).to_have_text(["1", "2"])
        await expect(bubble).to_contain_text('<script>document.title = "stolen"</script>')
        await expect(bubble.locator("script, img, iframe, style")).to_have_count(0)
        await expect(bubble.locator("a", has_text="pixel")).to_have_attribute("target", "_blank")
        assert await bubble.locator("a", has_text="bad").get_attribute("href") is None
        await expect(page.locator(".user .bubble")).to_contain_text("<script>")
        assert "stolen" not in (await page.title()).replace("= 'stolen'", "")
        assert not any("evil" in line for line in visit.requests)

        thoughts = page.locator(".thoughts")
        await expect(thoughts.locator(".plain")).not_to_be_visible()
        await thoughts.locator("summary").click()
        await expect(thoughts.locator(".plain")).to_have_text("hm, so")

    visiting(servers, scenario, Reply(f"<think>\nhm, so\n</think>\n\n{RICH}"),
             reasoning_parser="qwen3")  # fmt: skip


def test_an_answer_is_made_anew_and_a_message_changed(servers: Servers) -> None:
    hold = asyncio.Event()

    def told(visit: Visit) -> str:
        tokens = m.unpack_ints(visit.it.fake.prompts[-1].tokens)
        return bytes(token for token in tokens if token < 256).decode()

    async def scenario(visit: Visit) -> None:
        rights = ["clipboard-read", "clipboard-write"]
        page = await visit.page(await visit.context(permissions=rights))
        answers = page.locator(".assistant .bubble")
        await say(page, "one")
        await answered(page, 1)
        await page.get_by_role("button", name="Copy answer").click()
        await expect(page.locator("#live")).to_contain_text("Copied")
        assert await page.evaluate("navigator.clipboard.readText()") == "first"
        await page.get_by_role("button", name="Regenerate").click()
        await expect(answers).to_have_text(["second"])
        await answered(page, 1)
        await say(page, "two")
        await expect(answers).to_have_text(["second", "third"])
        await answered(page, 2)

        num_hints = len(visit.advisories)
        await page.get_by_role("button", name="Edit message").first.click()
        box = page.get_by_label("Your message, changed")
        await expect(box).to_be_focused()
        await box.press("Escape")
        edit = page.get_by_role("button", name="Edit message").first
        await expect(edit).to_be_focused()
        await edit.press("Enter")
        await box.press("!")
        await eventually(lambda: len(visit.advisories) == num_hints + 1)
        await box.press("Control+Enter")
        await expect(page.locator("#stop")).to_be_visible()
        await expect(page.locator(".user .bubble")).to_have_text(["one!"])
        await expect(answers).to_have_text("fo")
        await page.locator("#text").press("Escape")  # stops it
        await answered(page, 1)
        await expect(page.locator(".notice")).to_have_text("Stopped.")
        await eventually(lambda: len(visit.it.fake.cancels) == 1)

        await page.locator("#settings-open").click()
        await page.get_by_label("System prompt").fill("Be brief.")
        await page.get_by_label("Temperature").fill("0.5")
        await page.get_by_label("Longest answer").fill("5")
        await page.get_by_role("button", name="Save").click()
        await expect(page.locator("#settings-open")).to_be_focused()
        await say(page, "last")
        await expect(answers).to_have_text(["fo", "fifth"])
        await expect(page.locator(".notice").last).to_contain_text("Cut off")
        sampling = visit.it.fake.prompts[-1].sampling
        assert (sampling.temperature, sampling.max_tokens) == (0.5, 5)
        assert "Be brief." in told(visit) and "one!" in told(visit) and "third" not in told(visit)
        await page.locator("#new").click()
        await expect(page.locator(".greeting")).to_be_visible()
        await page.locator("#list a").click()
        await expect(answers).to_have_text(["fo", "fifth"])

        await page.get_by_role("button", name="Delete one!").click()
        await page.get_by_role("button", name="Delete", exact=True).click()
        await expect(page.locator("#list a")).to_have_count(0)
        await expect(page.locator(".greeting")).to_be_visible()
        await eventually(lambda: len(visit.it.fake.forgets) == 1)

    visiting(
        servers, scenario, Reply("first"), Reply("second"), Reply("third"),
        Reply("fourth", hold=hold, hold_at=2), Reply("fifth and more"),
    )  # fmt: skip


def test_tools_are_called_answered_and_cut_off(servers: Servers) -> None:
    async def scenario(visit: Visit) -> None:
        page = await visit.page()
        await page.locator("#settings-open").click()
        tools = page.get_by_label("Tools, as a list in JSON")
        await tools.fill("[{")
        await page.get_by_role("button", name="Save").click()
        await expect(page.locator("#tools-error")).to_contain_text("no JSON")
        await tools.fill(TOOLS)
        await page.get_by_role("button", name="Save").click()
        await say(page, "Rain?")
        await answered(page, 1)
        call = page.locator(".call")
        await expect(call.locator("b")).to_have_text("weather")
        await expect(call.locator("code")).to_have_text('{\n  "city": "Oslo"\n}')
        await page.get_by_label("What weather gives").fill("wet")
        await page.get_by_role("button", name="Send results").click()
        await expect(page.locator(".assistant .bubble").nth(1)).to_have_text("It rains.")
        await expect(page.locator(".tool .bubble")).to_have_text("wet")

        await page.locator("#settings-open").click()
        await page.get_by_label("Longest answer").fill("55")
        await page.get_by_role("button", name="Save").click()
        await say(page, "And now?")
        await answered(page, 3)
        cut = page.locator(".call").last
        await expect(cut).to_contain_text("cut off")
        await expect(cut.locator("code")).to_contain_text('{"city"')
        await expect(page.locator(".notice")).to_contain_text("Cut off")
        await expect(page.locator(".results")).to_have_count(0)
        await say(page, "Go on")  # the call stands in the history as far as it came
        await expect(page.locator(".assistant .bubble").last).to_have_text("Yes.")

    replies = Reply(CALL), Reply("It rains."), Reply(CALL), Reply("Yes.")
    visiting(servers, scenario, *replies, tool_parser="hermes")


def test_where_the_memory_was_is_told(servers: Servers) -> None:
    usage = {
        "prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107,
        "prompt_tokens_details": {
            "cached_tokens": 90, "cached_tokens_details": {"pool": 50, "disk": 30},
        },
    }  # fmt: skip
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]},
        {"choices": [], "usage": usage},
    ]
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"

    async def scenario(visit: Visit) -> None:
        page = await visit.page()
        asked: list[dict[str, Any]] = []

        async def answer(route: Any) -> None:
            asked.append(route.request.post_data_json)
            await route.fulfill(content_type="text/event-stream", body=events)

        await page.route("**/v1/chat/completions", answer)
        await say(page, "hello")
        await expect(page.locator(".figures")).to_contain_text(
            "100 prompt tokens: 50 in the worker's KV pool, 30 on disk, 10 cached, 10 computed"
        )
        assert await page.locator(".bar span").count() == 4
        assert asked[0]["return_cached_tokens_details"] is True

    visiting(servers, scenario)


def test_keys_come_from_the_browser_or_from_the_settings(servers: Servers) -> None:
    keys = servers[2] / "keys.json"
    keys.write_text(json.dumps([{"key": "k1", "tenant": "acme"}]))

    async def scenario(visit: Visit) -> None:
        visit.excused.append("401")
        visit.it.http.headers["Authorization"] = "Bearer k1"
        credentials = {"username": "anyone", "password": "k1"}
        page = await visit.page(await visit.context(http_credentials=credentials))
        await say(page, "hello")
        await answered(page, 1)
        assert visit.it.fake.submits[-1].tenant == "acme"

        await page.route(  # as where a proxy let the page through, and not what it asks
            "**/v1/models",
            lambda route: (
                route.continue_()
                if route.request.headers.get("authorization") == "Bearer k1"
                else route.fulfill(status=401, body="{}")
            ),
        )
        await page.reload()
        key = page.get_by_label("API key")
        await expect(key).to_be_focused()
        await key.fill("k1")
        await page.get_by_role("button", name="Save").click()
        await expect(page.locator("#model option").first).to_be_attached()
        # The browser may offer to keep the key just now, and hear no keys meanwhile.
        await page.locator("#text").fill("again")
        await page.locator("#send").click()
        await answered(page, 2)
        await expect(page.locator("#notice")).not_to_be_visible()

    visiting(servers, scenario, api_keys_file=keys)


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not there: AXE_PATH names axe.min.js")
def test_nobody_is_kept_out(servers: Servers) -> None:
    """What axe finds, light and dark, on a desk and on a phone; and the keyboard alone will do."""

    async def check(page: Any, where: str) -> None:
        found = await page.evaluate("axe.run(document).then(({ violations }) => violations)")
        told = [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in found]
        assert told == [], where

    async def scenario(visit: Visit) -> None:
        page = await visit.page()
        await page.evaluate(AXE.read_text())
        await check(page, "empty")
        await page.keyboard.press("Shift+Tab")
        await page.keyboard.press("Tab")
        await page.keyboard.type("hello")
        await page.keyboard.press("Enter")
        await answered(page, 1)
        await page.locator(".thoughts summary").press("Enter")
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            for width in (1200, 390):
                await page.set_viewport_size({"width": width, "height": 800})
                await check(page, f"{scheme}, {width}")
            await page.locator("#menu").press("Enter")
            await expect(page.locator("#new")).to_be_focused()
            await check(page, f"{scheme}, menu")
            await page.keyboard.press("Escape")
            await expect(page.locator("#menu")).to_be_focused()
            await page.locator("#settings-open").press("Enter")
            await check(page, f"{scheme}, settings")
            await page.keyboard.press("Escape")
            await page.locator("#log").focus()
            for key, dialog in (("?", "#keys"), ("t", "#rename")):
                await page.keyboard.press(key)
                await expect(page.locator(dialog)).to_be_visible()
                await check(page, f"{scheme}, {dialog}")
                await page.keyboard.press("Escape")
            await page.locator("#menu").press("Enter")
            await page.locator("#transfer-open").press("Enter")
            await check(page, f"{scheme}, transfer")
            await page.keyboard.press("Escape")
            await page.locator("#search").press("Escape")
            assert await page.evaluate("document.body.scrollWidth") <= 390
        await page.get_by_role("button", name="Edit message").press("Enter")
        await check(page, "editing")

    visiting(servers, scenario, Reply(f"<think>\nhm\n</think>\n\n{RICH}"), reasoning_parser="qwen3")


def test_a_model_that_chats_is_found(servers: Servers) -> None:
    async def scenario(visit: Visit) -> None:
        page = await visit.page()
        await expect(page.locator("#model option")).to_have_text([MODEL])
        served = await visit.it.http.get("/static/symphony.js")
        assert "export class Symphony" in served.text
        assert "default-src 'self'" in served.headers["content-security-policy"]
        assert served.headers["content-type"].startswith("text/javascript")

    visiting(servers, scenario)
