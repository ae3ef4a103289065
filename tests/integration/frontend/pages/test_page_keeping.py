"""The chat page in a real browser: chats are named, found, exported and imported; answers have
versions; files go with messages; keys do what the list of them says.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from shared.wire import messages as m
from tests.conftest import Server
from tests.integration.frontend.deployment import Reply
from tests.integration.frontend.pages.browser import (
    Servers,
    Visit,
    answered,
    expect,
    needs_chromium,
    say,
    visiting,
)

pytestmark = needs_chromium

HOSTILE = "<img src=x onerror=\"document.title = 'stolen'\">"
CODE = "```python\nreturn 1  # so\n```"
BREAK = """(id) => new Promise((resolve, reject) => {
    const request = indexedDB.open("symphony-chat");
    request.onerror = () => reject(request.error);
    request.onsuccess = () => {
        const tx = request.result.transaction(["chats"], "readwrite");
        tx.objectStore("chats").put({ id, title: 7, messages: "none" });
        tx.oncomplete = () => { request.result.close(); resolve(); };
    };
})"""


@pytest.fixture
def servers(nats_server: Server, redis_server: Server, tmp_path: Path) -> Servers:
    return nats_server, redis_server, tmp_path


def prompt(visit: Visit) -> str:
    tokens = m.unpack_ints(visit.it.fake.prompts[-1].tokens)
    return bytes(token for token in tokens if token < 256).decode()


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def a_file(name: str, content: bytes) -> dict[str, Any]:
    return {"name": name, "mimeType": "text/plain", "buffer": content}


def test_answers_have_versions_and_messages_files(servers: Servers) -> None:
    hold = asyncio.Event()

    async def scenario(visit: Visit) -> None:
        page = await visit.page()
        answers = page.locator(".assistant .bubble")
        await page.set_input_files(
            "#file", [a_file("notes.txt", b"the fox"), a_file("photo.png", b"\x89PNG\xff")]
        )
        await expect(page.locator("#notice")).to_contain_text("photo.png is not a text file")
        await expect(page.locator("#files li")).to_have_text(["notes.txt \u00b7 7 B\u00d7"])
        await expect(page.locator("#hint")).to_have_text("prefetching")
        await page.get_by_role("button", name="Remove notes.txt").click()
        await expect(page.locator("#hint")).to_have_text("")
        await page.set_input_files("#file", a_file("notes.txt", b"the fox"))
        await say(page, "who?")
        await expect(answers).to_have_text("fi")
        hold.set()
        await answered(page, 1)
        assert "File notes.txt:\n```\nthe fox\n```\n\nwho?" in prompt(visit)
        await expect(page.locator("#files li")).to_have_count(0)
        await page.locator(".file summary").click()
        await expect(page.locator(".file pre")).to_have_text("the fox")
        figures = page.locator(".figures")
        await expect(figures).to_contain_text("first token")
        await expect(figures).to_contain_text("tokens/s")

        await page.get_by_role("button", name="Regenerate").click()
        await expect(answers.locator(".hl-keyword")).to_have_text("return")
        await expect(answers.locator(".hl-comment")).to_have_text("# so")
        await answered(page, 1)
        await expect(page.locator(".actions")).to_contain_text(["2 of 2"])
        await say(page, "more")
        await answered(page, 2)
        await page.get_by_role("button", name="Earlier version").click()
        await expect(answers).to_have_text(["first"])  # what followed the other goes with it
        await page.reload()
        await expect(answers).to_have_text(["first"])
        await say(page, "else")
        await answered(page, 2)
        assert "first" in prompt(visit) and "return 1" not in prompt(visit)
        await page.get_by_role("button", name="Later version").click()
        await expect(page.locator(".user .bubble")).to_have_text(["who?", "more"])
        await expect(answers.last).to_have_text("third")

    first = Reply("first", hold=hold, hold_at=2)
    visiting(servers, scenario, first, Reply(CODE), Reply("third"), Reply("fourth"))


def test_chats_are_named_found_exported_and_imported(servers: Servers) -> None:
    async def scenario(visit: Visit) -> None:
        page = await visit.page()
        titles = page.locator("#list a > span")
        await say(page, "about foxes")
        await answered(page, 1)
        await page.locator("#text").press("Escape")  # leaves the box: single keys are shortcuts
        await page.keyboard.press("t")
        await page.keyboard.type(HOSTILE)
        await page.keyboard.press("Enter")
        await expect(titles).to_have_text([HOSTILE])
        await expect(page.locator("#title")).to_have_text(HOSTILE)
        await page.keyboard.press("n")
        await say(page, "about bears")
        await answered(page, 1)
        await page.locator("#text").press("Escape")
        await page.keyboard.press("/")
        await page.keyboard.type("FOXES about")
        await expect(titles).to_have_text([HOSTILE])
        await expect(page.locator("#list small")).to_have_text("about foxes")
        await page.keyboard.type(" whales")
        await expect(page.locator("#found")).to_have_text("No chat has these words.")
        await page.locator("#search").fill("")
        await expect(titles).to_have_text(["about bears", HOSTILE])

        await page.locator("#transfer-open").click()
        async with page.expect_download() as download:
            await page.get_by_role("button", name="Export all 2 chats").click()
        exported = read(await (await download.value).path())
        assert [chat["title"] for chat in exported["chats"]] == ["about bears", HOSTILE]
        assert all("lease" not in chat for chat in exported["chats"])

        state = page.locator("#transfer-state")
        evil = {
            "id": "web-evil", "title": HOSTILE, "settings": {}, "onload": HOSTILE,
            "messages": [
                {"role": "user", "content": HOSTILE, "files": [{"name": HOSTILE, "text": HOSTILE}]},
                {"role": "assistant", "content": HOSTILE, "state": HOSTILE, "reason": HOSTILE,
                 "reasoning_content": HOSTILE, "figures": {"usage": {"prompt_tokens": HOSTILE}},
                 "tool_calls": [{"id": "c", "function": {"name": HOSTILE, "arguments": HOSTILE}}]},
            ],
        }  # fmt: skip
        exported["chats"] += [evil, {"id": "web-2", "title": 7}]
        for content, expected in (
            (b"{", "The file is not JSON."),
            (b'{"format": "other", "chats": []}', "The file has no exported chats."),
            (json.dumps(exported).encode(), "1 chat imported. 2 already here. 1 not readable."),
        ):
            await page.set_input_files("#import-file", a_file("chats.json", content))
            await expect(state).to_have_text(expected)
        await page.keyboard.press("Escape")
        await expect(titles).to_have_count(3)
        imported = page.locator("#list a").last
        assert await imported.get_attribute("href") != "#web-evil", "its session is its own"
        await imported.click()
        await expect(page.locator(".user .bubble")).to_have_text(HOSTILE)
        await expect(page.locator(".assistant .call")).to_contain_text(HOSTILE)
        await page.locator(".file summary").click()
        await expect(page.locator(".file pre")).to_have_text(HOSTILE)
        await expect(page.locator("#log img, #list img")).to_have_count(0)
        assert await page.title() == f"{HOSTILE} \u2013 Symphony", "nothing of it was run"

        await page.locator("#list a", has_text="about bears").click()
        await expect(page.locator(".user .bubble")).to_have_text("about bears")
        await page.evaluate(BREAK, await page.evaluate("location.hash.slice(1)"))
        await page.reload()
        await expect(page.locator("#notice")).to_contain_text("is not in this browser")
        await page.locator("#list a", has_text=HOSTILE).first.click()
        await say(page, "goes on")
        await expect(page.locator(".user .bubble").last).to_have_text("goes on")

    visiting(servers, scenario)


def test_keys_do_what_their_list_says(servers: Servers) -> None:
    async def scenario(visit: Visit) -> None:
        page = await visit.page()
        await page.locator("#text").press_sequentially("what?")
        await expect(page.locator("#keys")).not_to_be_visible()
        await page.locator("#text").press("Enter")
        await answered(page, 1)
        await page.locator("#text").press("ArrowUp")
        await expect(page.get_by_label("Your message, changed")).to_be_focused()
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="Edit message").evaluate("(it) => it.blur()")
        await page.keyboard.press("r")
        await answered(page, 1)
        await expect(page.locator(".actions")).to_contain_text(["2 of 2"])
        await page.locator("#text").press("Escape")
        await page.keyboard.press("[")
        await expect(page.locator(".actions")).to_contain_text(["1 of 2"])
        await page.keyboard.press("n")
        await say(page, "another")
        await answered(page, 1)
        await page.locator("#text").press("Escape")
        await page.keyboard.press("j")
        await expect(page.locator("#title")).to_have_text("what?")
        await page.locator("#text").press("Escape")
        await page.keyboard.press("k")
        await expect(page.locator("#title")).to_have_text("another")

        await page.locator("#text").press("Escape")
        await page.keyboard.press("?")
        await expect(page.locator("#keys dt")).to_have_count(16)
        await page.locator("#keys-on").uncheck()
        await page.keyboard.press("Escape")
        await page.reload()
        await expect(page.locator("#title")).to_have_text("another")
        await page.locator("#text").press("Escape")
        await page.keyboard.press("?")
        await page.keyboard.press("n")
        await expect(page.locator("#keys")).not_to_be_visible()
        await expect(page.locator("#title")).to_have_text("another")
        await page.get_by_role("link", name="Dashboard").click()
        await expect(page.get_by_role("heading", name="Symphony dashboard")).to_be_visible()

    visiting(servers, scenario)
