"""Clients that ask for a lot and never read it, twice as many as there are slots."""

import argparse
import array
import asyncio
import fcntl
import random
import socket
import termios
import time
from contextlib import AbstractContextManager, AsyncExitStack

import httpx
import orjson

from loadtest.deployment import Deployment, deployed
from loadtest.fuzz.report import Report
from loadtest.raw_http import request_bytes

FREE_WITHIN_S = 35.0
GIVE_UP_S = 120.0
PING_MAX_S = 1.0  # of a deployment that shares two cores with everybody who asks it
READERS_PER_ADDRESS = 500  # below the frontend's limit
RECEIVE_BYTES = 4096
PROMPT_CHARS = (200, 400)
CHOICES_MAX = 128  # of one request
LISTEN_S = 0.2


def add_options(parser: "argparse._ArgumentGroup") -> None:
    """Options of this mode."""
    parser.add_argument("--requests-max", type=int, default=64, help="slots; at most 128")


def deployment(args: argparse.Namespace) -> AbstractContextManager[Deployment]:
    """The deployment of this mode."""
    return deployed(settings={"SYMPHONY_REQUESTS_MAX": str(min(args.requests_max, CHOICES_MAX))})


async def run(deployment: Deployment, seed: int, args: argparse.Namespace) -> Report:
    """Take all slots with readers that never read; count who else is served, and until when."""
    report, num_slots = Report(), min(args.requests_max, CHOICES_MAX)
    rng, pids = random.Random(seed), deployment.pids()
    limits = httpx.Limits(max_connections=8)
    async with (
        AsyncExitStack() as stack,
        httpx.AsyncClient(base_url=deployment.url, timeout=GIVE_UP_S, limits=limits) as http,
    ):
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        expected = await _stream(http, model)
        early = asyncio.create_task(_stream(http, model))  # it has a slot before the others come
        await asyncio.sleep(LISTEN_S)
        readers = [
            await _reader(stack, deployment, model, rng, index) for index in range(2 * num_slots)
        ]
        report.count("readers", len(readers))
        begun_at = time.monotonic()
        watch = _Watch(readers)
        beside = [asyncio.create_task(work) for work in (watch.run(), _others(http, model, report))]
        await _free(http, model, report, num_slots)
        free_at = time.monotonic()
        for task in beside:
            task.cancel()
        report.expect(await early == expected, "a stream that began before was not as expected")
        after = await http.post("/v1/chat/completions", json=_chat(model, 1))
        report.expect(after.status_code == 200, f"afterwards: {after.status_code} {after.text}")
    took_s = free_at - watch.last_byte_at
    report.see("slots_free_after_asking_s", free_at - begun_at)
    report.see("slots_free_after_last_byte_s", took_s)
    report.expect(took_s <= FREE_WITHIN_S, f"slots were free {took_s:.1f} s after the last byte")
    report.expect(
        report.worst.get("ping_s", 0.0) <= PING_MAX_S, f"/ping: {report.worst.get('ping_s')} s"
    )
    report.expect(
        report.counts.get("others_429", 0) > 0, "the readers never held all slots: nothing is shown"
    )
    report.expect(deployment.pids() == pids, f"processes ended: {pids} became {deployment.pids()}")
    return report


async def _reader(
    stack: AsyncExitStack, deployment: Deployment, model: str, rng: random.Random, index: int
) -> socket.socket:
    """Ask for half a megabyte at once and much more later, and never read."""
    raw = stack.enter_context(socket.socket())
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    raw.bind((f"127.0.0.{2 + index // READERS_PER_ADDRESS}", 0))
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(raw, ("127.0.0.1", deployment.port))
    body = {
        "model": model,
        "prompt": "".join(rng.choices("abcdefgh ", k=rng.randint(*PROMPT_CHARS))),
        "echo": True,
        "logprobs": 20,
        "max_tokens": 4000,
        "ignore_eos": True,
        "stream": True,
        "seed": rng.randrange(2**31),
    }
    request = request_bytes("POST", "/v1/completions", deployment.port, orjson.dumps(body))
    await loop.sock_sendall(raw, request)
    return raw


class _Watch:
    """Sees when the last byte came to any of the readers: from then on they take nothing.

    Attributes:
        last_byte_at: seconds, monotonic.
    """

    def __init__(self, readers: list[socket.socket]) -> None:
        self._num_bytes = dict.fromkeys(readers, 0)
        self.last_byte_at = time.monotonic()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            for raw, known in self._num_bytes.items():
                waiting = array.array("i", [0])
                fcntl.ioctl(raw, termios.FIONREAD, waiting)
                if waiting[0] > known:
                    self._num_bytes[raw] = waiting[0]
                    self.last_byte_at = time.monotonic()
            await asyncio.sleep(LISTEN_S)


async def _free(http: httpx.AsyncClient, model: str, report: Report, num_slots: int) -> None:
    """Return when one request got all slots, or it takes too long."""
    give_up_at = time.monotonic() + GIVE_UP_S
    while time.monotonic() < give_up_at:
        answer = await http.post("/v1/chat/completions", json=_chat(model, num_slots))
        if answer.status_code == 200:
            return
        report.expect(answer.status_code == 429, f"{answer.status_code} {answer.text}")
        await asyncio.sleep(LISTEN_S)


async def _others(http: httpx.AsyncClient, model: str, report: Report) -> None:
    """Everybody else, until cancelled: answered soon, though it may be with 429."""
    while True:
        try:
            await _ask(http, model, report)
        except httpx.HTTPError as error:
            report.expect(False, f"others were not answered: {error!r}")
        await asyncio.sleep(LISTEN_S)


async def _ask(http: httpx.AsyncClient, model: str, report: Report) -> None:
    asked_at = time.monotonic()
    ping = await http.get("/ping")
    report.see("ping_s", time.monotonic() - asked_at)
    models = await http.get("/v1/models")
    chat = await http.post("/v1/chat/completions", json=_chat(model, 1))
    report.count(f"others_{chat.status_code}")
    for answer, statuses in ((ping, {200}), (models, {200}), (chat, {200, 429})):
        is_fine = answer.status_code in statuses
        report.expect(is_fine, f"{answer.url}: {answer.status_code} {answer.text}")


async def _stream(http: httpx.AsyncClient, model: str) -> str:
    """A long streamed answer."""
    body = _chat(model, 1) | {"max_tokens": 400, "ignore_eos": True, "stream": True}
    text = ""
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                choices = orjson.loads(line[6:])["choices"]
                text += choices[0]["delta"].get("content", "") if choices else ""
    return text


def _chat(model: str, n: int) -> dict[str, object]:
    messages = [{"role": "user", "content": "Hello"}]
    return {"model": model, "messages": messages, "max_tokens": 2, "temperature": 0, "n": n}
