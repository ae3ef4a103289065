"""Poison of many kinds, over HTTP and NATS, beside streams that must not notice."""

import argparse
import asyncio
import random
import time
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from multiprocessing import get_context

import orjson
from nats.aio.client import Client

from loadtest.deployment import Deployment, deployed
from loadtest.fuzz.poisons import KINDS, Poison, make
from loadtest.fuzz.report import Report, is_error
from loadtest.fuzz.streams import Seen, Streams
from loadtest.raw_http import ask, request_bytes
from shared.errors import InvalidRequest
from shared.wire.subjects import INFERENCE_SUBMIT

ANSWER_MAX_S = 60.0
ROOM = 32  # turns that run beside the streams


def add_options(parser: "argparse._ArgumentGroup") -> None:
    """Options of this mode."""
    parser.add_argument("--rounds", type=int, default=20, help="of every kind (default 20)")
    parser.add_argument("--streams", type=int, default=64, help="beside it (default 64)")
    parser.add_argument("--stream-tokens", type=int, default=200, help="of each reply")
    parser.add_argument("--kinds", default="", help="only these, with commas between them")
    parser.add_argument("--gap-max-s", type=float, default=0.5, help="more than without poison")
    parser.add_argument("--ping-max-s", type=float, default=0.25, help="of a /ping")


def deployment(args: argparse.Namespace) -> AbstractContextManager[Deployment]:
    """The deployment of this mode."""
    return deployed(settings={"SYMPHONY_TURNS_RUNNING_MAX": str(args.streams + ROOM)})


@dataclass(slots=True)
class _Kind:
    """What came of one kind.

    Attributes:
        answers: how many there were of each status (0: none), by way.
        took_s: the longest answer.
        gap_s: longest time between two pieces of a stream while one of it was under way.
    """

    answers: dict[str, int] = field(default_factory=dict)
    took_s: float = 0.0
    gap_s: float = 0.0


async def run(deployment: Deployment, seed: int, args: argparse.Namespace) -> Report:
    """Stream without poison, then with it; compare."""
    names = args.kinds.split(",") if args.kinds else list(KINDS)
    if unknown := set(names) - KINDS.keys():
        raise InvalidRequest(f"--kinds: {', '.join(sorted(unknown))}: take of {', '.join(KINDS)}")
    answer = await ask(deployment.port, request_bytes("GET", "/v1/models", deployment.port))
    model = orjson.loads(answer.body)["data"][0]["id"]
    report = Report(counts={"deaths": 0})
    campaign = _Campaign(deployment, report, seed, model, names)
    streams = Streams(deployment.port, model, args.streams, args.stream_tokens, campaign.on_gap)
    for _ in range(2):  # the second finds its history and says what is usual
        before = await streams.run(lambda: True)
        _tell(report, before, "undisturbed")
    sending = asyncio.create_task(campaign.send(args.rounds))
    beside = await streams.run(sending.done)
    await sending
    _tell(report, beside, "poisoned")
    more_s = max(0.0, beside.gap_s - before.gap_s)
    report.see("gap_beyond_undisturbed_s", more_s)
    report.expect(
        more_s <= args.gap_max_s,
        f"a stream stood still {more_s:.2f} s longer than without poison, beside"
        f" {campaign.worst_kind()}",
    )
    report.expect(beside.ping_s <= args.ping_max_s, f"/ping took {beside.ping_s:.3f} s")
    report.notes["kinds"] = {
        name: {
            "answers": kind.answers, "took_s": round(kind.took_s, 3), "gap_s": round(kind.gap_s, 3)
        }
        for name, kind in campaign.kinds.items()
    }  # fmt: skip
    return report


def _tell(report: Report, seen: Seen, phase: str) -> None:
    report.count(f"replies_{phase}", seen.num_replies)
    report.count(f"replies_failed_{phase}", len(seen.failures))
    for name in ("gap_s", "first_piece_s", "ping_s", "lag_s"):
        report.see(f"{phase}_{name}", getattr(seen, name))
    for failure in seen.failures:
        report.expect(False, f"{phase}: {failure}")


class _Campaign:
    """Sends poison one after the other, and notes what comes of it."""

    def __init__(
        self, deployment: Deployment, report: Report, seed: int, model: str, names: list[str]
    ) -> None:
        self._deployment = deployment
        self._report = report
        self._seed = seed
        self._model = model
        self._pids = deployment.pids()
        self._sent: deque[tuple[float, float, str]] = deque(maxlen=64)  # from, until, kind
        self._now: tuple[float, str] | None = None
        self.kinds = {name: _Kind() for name in names}

    def worst_kind(self) -> str:
        """Beside which the streams stood still longest."""
        return max(self.kinds, key=lambda name: self.kinds[name].gap_s)

    def on_gap(self, begun_at: float, ended_at: float) -> None:
        """A stream had nothing new between these instants."""
        beside = {
            kind for since, until, kind in self._sent if since < ended_at and until > begun_at
        }
        if self._now is not None and self._now[0] < ended_at:
            beside.add(self._now[1])
        for name in beside:
            self.kinds[name].gap_s = max(self.kinds[name].gap_s, ended_at - begun_at)

    async def send(self, num_rounds: int) -> None:
        """Every kind so many times, in an order of its own each time; over NATS every other time
        if it goes there.
        """
        loop = asyncio.get_running_loop()
        order = random.Random(self._seed)
        with ProcessPoolExecutor(1, get_context("spawn")) as maker:  # making them takes a while
            async with self._deployment.nats() as bus:
                for number in range(num_rounds):
                    for name in order.sample(list(self.kinds), len(self.kinds)):
                        seed = f"{self._seed}:{number}:{name}"
                        poison = await loop.run_in_executor(maker, make, name, seed, self._model)
                        fits = poison.nats and len(poison.body) <= bus.max_payload
                        await self._send_one(name, poison, bus if fits and number % 2 else None)

    async def _send_one(self, name: str, poison: Poison, bus: Client | None) -> None:
        begun_at = time.monotonic()
        self._now = begun_at, name
        way = "http" if bus is None else "nats"
        try:
            async with asyncio.timeout(ANSWER_MAX_S):
                status, body = await (
                    self._by_http(poison) if bus is None else _by_nats(bus, poison)
                )
        except (TimeoutError, OSError) as error:
            status, body = 0, repr(error).encode()
        ended_at = time.monotonic()
        self._now = None
        self._sent.append((begun_at, ended_at, name))
        self._report.count("poison")
        kind = self.kinds[name]
        kind.took_s = max(kind.took_s, ended_at - begun_at)
        answer = f"{way} {status}"
        kind.answers[answer] = kind.answers.get(answer, 0) + 1
        shown = f"{poison.body[:300].decode(errors='replace')!r}: {body[:300]!r}"
        self._report.expect(
            status in poison.statuses, f"{name} was answered {way} {status}: {shown}"
        )
        self._report.expect(
            status in (0, 200) or is_error(body), f"{name}: no error as OpenAI writes it: {shown}"
        )
        pids = self._deployment.pids()
        if pids != self._pids:
            ended = [child for child, pid in self._pids.items() if pids.get(child) != pid]
            self._report.count("deaths", len(ended))
            self._report.expect(False, f"{', '.join(ended)} ended beside {name}: {shown}")
            self._pids = pids

    async def _by_http(self, poison: Poison) -> tuple[int, bytes]:
        port = self._deployment.port
        answer = await ask(port, request_bytes("POST", poison.path, port, poison.body))
        return answer.status, answer.body


async def _by_nats(bus: Client, poison: Poison) -> tuple[int, bytes]:
    """The status is that of the error's type, for there is none over NATS."""
    inbox = bus.new_inbox()
    replies = await bus.subscribe(inbox, max_msgs=1)
    await bus.publish(INFERENCE_SUBMIT, poison.body, reply=inbox)
    body = (await replies.next_msg(ANSWER_MAX_S)).data
    answer = orjson.loads(body) if body else {}
    if "error" not in answer:
        return (200, body) if body else (503, body)
    return STATUSES.get(answer["error"].get("type"), 500), body


STATUSES = {
    "invalid_request_error": 400,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "service_unavailable_error": 503,
}
