"""Images in chats, for a model that takes them."""

import asyncio
import base64
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from services.worker.models.demo_model import make_demo_model
from shared.wire import messages as m
from shared.wire.images import IMAGE_BYTES_MAX, IMAGES_MAX
from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, Deployment, Reply, deployment

PATH = "/v1/chat/completions"
FILES = [base64.b64encode(name).decode() for name in (b"first", b"second")]
# Some vision models' templates write nothing of a content that is text.
PARTS_ONLY = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% elif part['type'] == 'text' %}{{ part['text'] }}"
    "{% endif %}{% endfor %};{% endfor %}"
)
EITHER = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}" + PARTS_ONLY.partition("%}")[2].rpartition(";")[0] + "{% endif %};{% endfor %}"
)


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "auto"}}


def data(file: str) -> str:
    return f"data:image/png;base64,{file}"


def asked(*content: Any, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": list(content)}], **fields}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


BOTH = asked(text("Is "), image(data(FILES[0])), text(" like "), image(data(FILES[1])), text("?"))


def run(
    scenario: Callable[[Deployment], Coroutine[Any, Any, None]],
    servers: tuple[Server, Server],
    folder: Path,
    template: str = PARTS_ONLY,
    **options: Any,
) -> None:
    demo = make_demo_model(folder / "demo")
    config = json.loads((demo / "tokenizer_config.json").read_text())
    (demo / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))

    async def main() -> None:
        async with deployment(
            *servers, folder, lambda _: Reply("yes", prompt_tokens=99), **options
        ) as it:
            await scenario(it)

    asyncio.run(main())


@pytest.mark.parametrize("template", [PARTS_ONLY, EITHER])
def test_images_go_to_the_worker_and_leave_nothing_behind(
    nats_server: Server, redis_server: Server, tmp_path: Path, template: str
) -> None:
    async def scenario(it: Deployment) -> None:
        for _ in range(2):
            answer = await it.http.post(PATH, json=BOTH | {"session_id": "s"})
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["prompt_tokens"] == 99, "as the worker counts them"
            prompt = it.fake.prompts[-1]
            assert prompt.images == FILES and not prompt.num_history
            assert bytes(m.unpack_ints(prompt.tokens)) == b"Is <image> like <image>?;"
            assert not it.fake.submits[-1].prompt and it.fake.submits[-1].session_id is None
        assert (await it.http.get("/v1/sessions/s")).status_code == 404
        messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
        await it.http.post(PATH, json={"model": MODEL, "messages": messages})
        assert bytes(m.unpack_ints(it.fake.prompts[-1].tokens)) == b"Be kind.;Hi;"
        assert not it.fake.prompts[-1].images

    run(scenario, (nats_server, redis_server), tmp_path, template, takes_images=True)


def test_what_is_wrong_is_named(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    first = "messages[0].content[0]"
    url = f"{first}.image_url.url"
    system = {"role": "system", "content": [image(data(FILES[0]))]}
    large = data(base64.b64encode(bytes(IMAGE_BYTES_MAX // 2 + 1)).decode())
    cases: list[tuple[dict[str, Any], str]] = [
        (asked(image("https://example.org/a.png")), url),
        (asked(image("file:///etc/passwd")), url),
        (asked(image(data("###"))), url),
        (asked({"type": "image_url", "image_url": {}}), url),
        (asked(image(large), image(large)), "messages[0].content[1].image_url.url"),
        (asked(*[image(data(FILES[0]))] * (IMAGES_MAX + 1)), "messages"),
        (asked({"type": "input_audio"}), first),
        (BOTH | {"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        (BOTH | {"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"model": MODEL, "messages": [system]}, first),
    ]

    async def scenario(it: Deployment) -> None:
        for body, param in cases:
            answer = await it.http.post(PATH, json=body)
            assert answer.status_code == 400, answer.text[:500]
            assert answer.json()["error"]["param"] == param, answer.text[:500]
        assert not it.fake.submits

    run(scenario, (nats_server, redis_server), tmp_path, takes_images=True)
