"""The line that is logged of each request that is over."""

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from services.frontend.observability import access_log as access
from shared.runtime.logs import JsonFormatter
from shared.wire.subjects import INFERENCE_SUBMIT
from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, Deployment, Reply, deployment, eventually
from tests.integration.harness import client_of

CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


class Lines(logging.Handler):
    """What was logged, as it is written."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter("frontend", "0"))
        self.all: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.all.append(json.loads(self.format(record)))

    async def last(self, path: str) -> dict[str, Any]:
        """The newest line; it comes after the answer."""
        await eventually(lambda: any(line["path"] == path for line in self.all))
        at = max(at for at, line in enumerate(self.all) if line["path"] == path)
        return self.all.pop(at)


@contextmanager
def lines() -> Iterator[Lines]:
    handler = Lines()
    access.log.addHandler(handler)
    access.log.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        access.log.removeHandler(handler)
        access.log.setLevel(logging.NOTSET)


async def check_text(it: Deployment, said: Lines) -> None:
    path = "/v1/chat/completions"
    headers = {"X-Request-Id": "mine", "traceparent": "00-trace"}
    await it.http.post(path, json=CHAT | {"session_id": "s"}, headers=headers)
    line = await said.last(path)
    assert line["message"] == "access" and line["traceparent"] == "00-trace"
    assert (line["request_id"], line["tenant"], line["session_id"]) == ("mine", "default", "s")
    assert (line["method"], line["status"], line["model"]) == ("POST", 200, MODEL)
    assert line["prompt_tokens"] > 0 and line["cached_tokens"] == 3
    assert line["completion_tokens"] == len("hello") + 1
    assert 0 < line["first_token_ms"] <= line["duration_ms"]
    assert [submit.request_id for submit in it.fake.submits] == ["mine"]

    await it.http.post(path, json=CHAT | {"stream": True})
    line = await said.last(path)
    assert line["completion_tokens"] == len("hello") + 1 and line["request_id"].startswith("req-")

    await it.http.post(path, json=CHAT | {"model": "no"})
    line = await said.last(path)
    assert (line["status"], line["error"]) == (404, "model_not_found")
    assert "first_token_ms" not in line


async def check_others(it: Deployment, said: Lines) -> None:
    for path in ("/health", "/ping", "/metrics"):
        await it.http.get(path)
    await it.http.get("/v1/models")
    assert (await said.last("/v1/models"))["status"] == 200
    assert said.all == [], "machines that ask every few seconds are not told of"

    inbox = client_of(it.bus).new_inbox()
    replies = await client_of(it.bus).subscribe(inbox)
    await client_of(it.bus).publish(INFERENCE_SUBMIT, orjson.dumps(CHAT), reply=inbox)
    await replies.next_msg(timeout=20)
    line = await said.last(INFERENCE_SUBMIT)
    assert (line["method"], line["tenant"], line["model"]) == ("NATS", "default", MODEL)
    assert line["completion_tokens"] == len("hello") + 1
    await replies.unsubscribe()


async def check_hang_up(it: Deployment, said: Lines, hold: asyncio.Event) -> None:
    path = "/v1/completions"
    body = {"model": MODEL, "prompt": "wait", "stream": True}
    async with it.http.stream("POST", path, json=body) as answer:
        async for _ in answer.aiter_text():
            break
    line = await said.last(path)
    assert (line["status"], line["error"], line["completion_tokens"]) == (200, "client_gone", 3)
    hold.set()


def test_a_request_leaves_one_line(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        hold = asyncio.Event()

        def reply(prompt: Any) -> Reply:
            return Reply(hold=hold, hold_at=3) if len(it.fake.submits) > 3 else Reply()

        async with deployment(nats_server, redis_server, tmp_path, reply) as it:
            with lines() as said:
                await check_text(it, said)
                await check_others(it, said)
                await check_hang_up(it, said, hold)

    asyncio.run(scenario())
