"""Texts and templates that take long, or for ever: everybody else is served meanwhile."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from services.frontend.core.process_pool import Give
from services.frontend.rendering.pool import Pool
from services.worker.models.demo_model import make_demo_model
from shared.wire.subjects import INFERENCE_SUBMIT
from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, Deployment, Reply, deployment, eventually
from tests.integration.harness import client_of

CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
TEMPLATE = """
{%- if rounds %}{% for a in range(rounds) %}{% for b in range(rounds) %}{% for c in range(rounds) %}
{%- endfor %}{% endfor %}{% endfor %}{% endif %}
{%- macro deeper(n) %}{{ deeper(n + 1) }}{% endmacro %}
{%- if is_deep or messages[0].content == "deep" %}{{ deeper(0) }}{% endif %}
{%- if divisor is defined %}{{ 1 / divisor }}{% endif %}
{%- if messages[0].content == "zero" %}{{ 1 / 0 }}{% endif %}
{%- if why %}{{ raise_exception(why) }}{% endif %}
{%- if messages[0].content == "no" %}{{ raise_exception("not that") }}{% endif %}
{%- if messages[0].content == "who" %}{{ nobody.name }}{% endif %}
{%- if size %}{{ "x" * size }}{% endif %}
{%- for message in messages %}{{ message.content }}{% endfor %}"""
PATIENT: dict[str, Any] = {"text_limit_s": 60}  # where no time limit is to be met
IM_START, IM_END = 257, 258
LONG = "".join(random.Random(7).choices("ab \n\u00e4\u20ac\U0001f600", k=500_000))


def make_model(folder: Path) -> Path:
    """The demo model with a template that does what it is told."""
    made = make_demo_model(folder / "demo")
    (made / "chat_template.jinja").write_text(TEMPLATE)
    config = orjson.loads((made / "tokenizer_config.json").read_bytes())
    config.pop("chat_template", None)
    (made / "tokenizer_config.json").write_bytes(orjson.dumps(config))
    return made


def children(parent: int | None = None) -> list[int]:
    """The processes that render for a process."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # no process, or it is gone
        if command[2:4] == [b"services.frontend.rendering.child", b"%d" % (parent or os.getpid())]:
            found.append(int(folder.name))
    return found


async def ask(it: Deployment, **fields: Any) -> tuple[int, str, str]:
    """Status, code and message of a chat's answer."""
    answer = await it.http.post("/v1/chat/completions", json=CHAT | fields)
    error = answer.json().get("error", {"code": "", "message": ""})
    return answer.status_code, error["code"], error["message"]


async def ask_nats(it: Deployment, **fields: Any) -> tuple[str, str]:
    payload = orjson.dumps(CHAT | fields)
    reply = await client_of(it.bus).request(INFERENCE_SUBMIT, payload, timeout=20)
    error = orjson.loads(reply.data).get("error", {"code": "", "message": ""})
    return error["code"], error["message"]


def has_more(it: Deployment, num_submits: int) -> bool:
    return len(it.fake.submits) > num_submits


def said(content: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def test_a_template_that_counts_for_ever_holds_up_nobody(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        make_model(tmp_path)
        async with deployment(nats_server, redis_server, tmp_path, text_limit_s=2) as it:
            endless = {"chat_template_kwargs": {"rounds": 99_999}}
            asked = [asyncio.create_task(ask(it, **endless)) for _ in range(2)]
            asked_nats = asyncio.create_task(ask_nats(it, **endless))
            await eventually(lambda: len(children()) == 2)
            for _ in range(20):
                assert (await it.http.get("/ping")).status_code == 200
            assert (await ask(it))[0] == 200
            assert not any(task.done() for task in asked)
            for task in asked:
                status, code, message = await task
                assert (status, code) == (400, "prompt_takes_too_long") and "2 s" in message
            assert (await asked_nats)[0] == "prompt_takes_too_long"
            assert (await ask(it, chat_template_kwargs={"rounds": 2}))[0] == 200, "replaced"
        assert children() == []

    asyncio.run(scenario())


def test_what_templates_raise_is_told_and_ends_nothing(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        (said("zero"), "division by zero"),
        (said("no"), "not that"),
        (said("who"), "'nobody' is undefined"),
        (said("deep"), "recursion"),
        ({"chat_template_kwargs": {"divisor": 0}}, "division by zero"),
        ({"chat_template_kwargs": {"why": "go away"}}, "go away"),
        ({"chat_template_kwargs": {"is_deep": 1}}, "recursion"),
        ({"chat_template_kwargs": {"size": 10**11}}, "repeats something"),
        ({"chat_template_kwargs": {"rounds": "many"}}, "str"),
        ({"chat_template_kwargs": {"other": 1}}, "it reads divisor, is_deep, nobody"),
    ]

    async def scenario() -> None:
        make_model(tmp_path)
        async with deployment(nats_server, redis_server, tmp_path) as it:
            for fields, why in cases:
                status, code, message = await ask(it, **fields)
                assert status == 400 and why in message, (fields, code, message)
                told = await ask_nats(it, **fields)
                assert told[0] == code and why in told[1], "Python says in several ways how deep"
            assert len(children()) == 1, "nothing died of it"
            assert (await ask(it))[0] == 200

    asyncio.run(scenario())


def test_long_texts_have_the_tokens_that_short_ones_have(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with deployment(
            nats_server, redis_server, tmp_path, body_values_max=10**7, **PATIENT
        ) as it:
            body = {"prompt": LONG, "add_special_tokens": False}
            reading = asyncio.create_task(it.http.post("/tokenize", json=body))
            for _ in range(20):
                assert (await it.http.get("/ping")).status_code == 200
            tokens = (await reading).json()["tokens"]
            assert tokens == [*LONG.encode()], "byte b is token b"
            again = await it.http.post("/detokenize", json={"tokens": tokens})
            assert again.json()["prompt"] == LONG
            for num in (64, 65):
                body = {"messages": [{"role": "user", "content": "a"}] * num}
                made = (await it.http.post("/tokenize", json=body)).json()["tokens"]
                turn = [IM_START, *b"user\na", IM_END, *b"\n"]
                assert made == [*turn * num, IM_START, *b"assistant\n"]

    asyncio.run(scenario())


def test_a_child_that_is_killed_costs_nobody_their_answer(
    nats_server: Server, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Give] = []
    give = Pool._give

    def tell(pool: Pool, effect: Give) -> None:
        give(pool, effect)
        given.append(effect)

    monkeypatch.setattr(Pool, "_give", tell)

    async def scenario() -> None:
        async with deployment(
            nats_server, redis_server, tmp_path, text_processes=1, **PATIENT
        ) as it:
            body = {"prompt": LONG[:50_000], "add_special_tokens": False}
            assert (await it.http.post("/tokenize", json=body)).status_code == 200
            (child,) = children()
            os.kill(child, signal.SIGSTOP)
            reading = asyncio.create_task(it.http.post("/tokenize", json=body))
            await eventually(lambda: len(given) == 2)
            os.kill(child, signal.SIGKILL)
            assert (await reading).json()["tokens"] == [*LONG[:50_000].encode()]
            assert len(given) == 3 and children() != [child]

    asyncio.run(scenario())


def test_what_cannot_fit_is_not_tokenized(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path) as it:
            prompt = "a" * 60_000  # more than 100 characters a token of 512
            answer = await it.http.post("/v1/completions", json={"model": MODEL, "prompt": prompt})
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "context_length_exceeded"
            assert children() == []
            kept = {"model": MODEL, "prompt": LONG[:100_000], "truncate_prompt_tokens": 9}
            answer = await it.http.post("/v1/completions", json=kept)
            assert answer.status_code == 200 and answer.json()["usage"]["prompt_tokens"] == 9
            assert it.fake.submits[-1].num_prompt_tokens == 9
            too_many: list[list[dict[str, str]]] = [[{"role": "user", "content": "a"}] * 8193]
            answer = await it.http.post(
                "/v1/completions", json={"model": MODEL, "prompt": "a" * 40_000}
            )
            assert answer.json()["error"]["code"] == "context_length_exceeded"
            answer = await it.http.post("/tokenize", json={"prompt": "a" * 300_000})
            assert "300000 tokens" in answer.json()["error"]["message"]
            for messages in (*too_many, [{}] * 40_000):
                answer = await it.http.post("/tokenize", json={"messages": messages})
                assert answer.status_code == 400

    asyncio.run(scenario())


def test_large_bodies_take_room_and_give_it_back(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        settings: dict[str, Any] = {"job_bytes_max": 100_000, "text_processes": 1} | PATIENT
        go_on = asyncio.Event()
        go_on.set()
        reply = Reply(hold=go_on)
        async with deployment(
            nats_server, redis_server, tmp_path, lambda _: reply, **settings
        ) as it:
            large = {"model": MODEL, "prompt": "a" * 70_000, "truncate_prompt_tokens": 400}
            assert (await it.http.post("/v1/completions", json=large)).status_code == 200
            (child,) = children()
            os.kill(child, signal.SIGSTOP)
            with_session = large | {"session_id": "s"}
            asked = {
                asyncio.create_task(it.http.post("/v1/completions", json=with_session))
                for _ in range(2)
            }
            (refused,), (held,) = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            assert refused.result().status_code == 503
            assert refused.result().headers["retry-after"] == "1"
            os.kill(child, signal.SIGCONT)
            assert (await held).status_code == 200

            for fields, status in ((large, 404), (with_session, 503)):
                go_on.clear()
                num_submits = len(it.fake.submits)
                first = asyncio.create_task(it.http.post("/v1/completions", json=fields))
                await eventually(partial(has_more, it, num_submits))
                unknown = large | {"model": "nobody's"}
                answer = await it.http.post("/v1/completions", json=unknown)
                assert answer.status_code == status, "only a session's text is kept"
                go_on.set()
                assert (await first).status_code == 200
            assert (await it.http.post("/v1/completions", json=large)).status_code == 200

    asyncio.run(scenario())


def test_children_end_with_their_parent(tmp_path: Path) -> None:
    make_model(tmp_path)
    command = [sys.executable, "-c", PARENT, str(tmp_path / "demo")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert children(parent.pid) == [child]
        parent.kill()
        parent.wait()
        asyncio.run(eventually(lambda: children(parent.pid) == []))


PARENT = """
import asyncio, sys
from services.frontend.core.process_pool import PoolLimits
from services.frontend.rendering.pool import Pool
from services.frontend.rendering.texts import Texts
from services.frontend.rendering.tokenizer import load_tokenizer
from shared.runtime.clock import SystemClock

async def main():
    second = 10**9
    pool = Pool(SystemClock(), PoolLimits(num_children=1, work_ns=60 * second))
    texts, tokenizer = Texts(pool, pool), load_tokenizer(sys.argv[1])
    await texts.encode(tokenizer, "a" * 20_000, special=False)
    print(*pool.pids, flush=True)
    await texts.render(tokenizer, [{"role": "user", "content": "a"}], {"rounds": 99_999})

asyncio.run(main())
"""
