"""``symphony bench flood``: one client sends advisories for turns that never come, at `--rate` a
second; another tenant's turns go on.

The house runs the demo model, or `--model`, as `symphony up` starts it, with a key for each of the
two. The flooder is a process of its own that waits for no answer (`sender`): what the frontend does
not read waits in the kernel, and when that is full too the flooder cannot send. Rounds with the
flood and without it take turns. Everything shares this machine. Advisories about adapters are
another thing: ``bench adapters --flood``.
"""

import argparse
import asyncio
import statistics
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from cli.start.credentials import nkey_file
from loadtest.fuzz.house import MODEL, House, open_house
from loadtest.http_load import Answers, closed_loop
from services.worker.models.demo_model import DEMO_MODEL_ID
from shared.errors import InvalidRequest, PeerUnavailable
from shared.ids import TenantId

FLOODER, OTHER = TenantId("flooder"), TenantId("other")
PATH = "/v1/completions"
PROMPT = "Once upon a time there was a fox who lived at the edge of a large forest."
THROTTLED = "hints_throttled"
KILL_S = 30.0


@dataclass(slots=True)
class Sent:
    """What one flood came to, of all rounds together.

    Attributes:
        num_due: advisories that were to be sent; `num_sent` of them could be.
        answers: by status; over NATS by code of the error, `ok` without one.
        first_throttled_s: from the flood's begin; None: nobody was throttled.
    """

    num_due: int = 0
    num_sent: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    first_throttled_s: float | None = None

    def add(self, line: bytes) -> None:
        """One round more, as `sender` tells it."""
        told = orjson.loads(line)
        self.num_due += told["num_due"]
        self.num_sent += told["num_sent"]
        self.answers.update(told["answers"])
        if self.first_throttled_s is None:
            self.first_throttled_s = told["first_throttled_s"]

    @property
    def num_throttled(self) -> int:
        return self.answers["429"] + self.answers[THROTTLED]


def run(argv: list[str]) -> dict[str, Any]:
    """``ttft_ms_before``, ``ttft_ms_during``: medians of the other tenant; ``throttled``: refusals
    that the flooder was sent.

    Raises:
        InvalidRequest: an option is wrong.
        PeerUnavailable: the house failed, or a turn of the other tenant did.
    """
    args = _parser().parse_args(argv)
    if args.rate <= 0 or args.seconds <= 0:
        raise InvalidRequest("--rate, --seconds: use numbers above 0")
    if min(args.connections, args.rounds, args.concurrency) < 1:
        raise InvalidRequest("--connections, --rounds, --concurrency: use numbers from 1 on")
    with TemporaryDirectory(prefix="symphony-flood-") as name:
        keys = Path(name) / "keys.json"
        of_both = [
            {"key": _secret(who), "tenant": who, "scopes": ["inference"]}
            for who in (FLOODER, OTHER)
        ]
        keys.write_bytes(orjson.dumps(of_both))
        with open_house({"SYMPHONY_API_KEYS_FILE": str(keys)}, model=args.model) as house:
            return asyncio.run(_measure(args, house))


async def _measure(args: argparse.Namespace, house: House) -> dict[str, Any]:
    calm: list[float] = []
    beside: list[float] = []
    sent = Sent()
    await _ask(args, house)  # warm
    for number in range(args.rounds):
        calm += (await _ask(args, house)).first_s
        flood = asyncio.create_task(_flood(args, house, number, sent))
        beside += (await _ask(args, house)).first_s
        await flood
        _say(f"round {number + 1}: {sent.num_sent} sent, {sent.num_throttled} throttled")
    return summary(calm, beside, sent, args.rounds * args.seconds)


def summary(calm: list[float], beside: list[float], sent: Sent, seconds: float) -> dict[str, Any]:
    """What all rounds come to.

    Args:
        calm, beside: times to the first token without the flood and with it, seconds.
        seconds: that the flood lasted in all.
    """
    before, during = _median_ms(calm), _median_ms(beside)
    return {
        "ttft_ms_before": before,
        "ttft_ms_during": during,
        "throttled": sent.num_throttled,
        "ttft_ratio": round(during / before, 3),
        "ttft_p99_ms_before": _p99_ms(calm),
        "ttft_p99_ms_during": _p99_ms(beside),
        "due_per_s": round(sent.num_due / seconds),
        "sent_per_s": round(sent.num_sent / seconds),
        "answers": dict(sorted(sent.answers.items())),
        "first_throttled_s": sent.first_throttled_s,
        "turns_before": len(calm),
        "turns_during": len(beside),
    }


async def _ask(args: argparse.Namespace, house: House) -> Answers:
    body = {
        "model": DEMO_MODEL_ID if args.model == MODEL else args.model,
        "prompt": PROMPT,
        "max_tokens": 8,
        "stream": True,
        "ignore_eos": True,
    }
    answers = await closed_loop(
        house.port,
        PATH,
        orjson.dumps(body),
        f"Authorization: Bearer {_secret(OTHER)}".encode(),
        concurrency=args.concurrency,
        seconds=args.seconds,
    )
    if answers.num_errors or not answers.first_s:
        codes = ", ".join(sorted({*map(str, answers.status), *answers.code.values()}))
        raise PeerUnavailable(f"turns of the other tenant failed: {codes}")
    return answers


async def _flood(args: argparse.Namespace, house: House, number: int, sent: Sent) -> None:
    options = ["--rate", str(args.rate), "--seconds", str(args.seconds), "--name", f"r{number}"]
    if args.nats:
        seed = nkey_file(house.directory / "credentials", FLOODER)
        where = ["nats", house.nats_url, str(seed), FLOODER]
    else:
        where = ["http", str(house.port), _secret(FLOODER), str(args.connections)]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadtest.bench.flood.sender", *options, *where,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, _ = await asyncio.wait_for(child.communicate(), args.seconds + KILL_S)
    except TimeoutError:
        child.kill()
        raise PeerUnavailable("the flooder does not end") from None
    if child.returncode:
        raise PeerUnavailable(f"the flooder ended with status {child.returncode}")
    sent.add(out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="symphony bench flood", description=__doc__)
    parser.add_argument("--rate", type=float, default=10_000.0, help="advisories a second")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a round")
    parser.add_argument("--rounds", type=int, default=4, help="with the flood, and as many without")
    parser.add_argument("--connections", type=int, default=64, help="of the flooder")
    parser.add_argument("--concurrency", type=int, default=2, help="turns of the other at once")
    parser.add_argument("--model", default=MODEL, help="as `up` takes it")
    parser.add_argument("--nats", action="store_true", help="the flood comes over NATS")
    return parser


def _secret(tenant: TenantId) -> str:
    return f"key-{tenant}"


def _median_ms(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1e3, 2)


def _p99_ms(seconds: list[float]) -> float:
    return round(sorted(seconds)[int(len(seconds) * 0.99)] * 1e3, 2)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
