"""Turns with adapters that come to one server at their own times, by what it does about adapters
that are not in its pool (`lora_start`).

A worker and its kvstore run as processes of their own, over a link of `LINK_MB_S`. Whatever the
worker does, the same turns come at the same instants, so that each can be compared with itself.
On `cached`, which is none of the settings, the pool holds every adapter.
"""

import asyncio
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from loadtest.bench.lab import Lab, Trace, open_lab
from loadtest.bench.lora.made import MadeAdapter, make_adapters
from loadtest.models import shape_of
from loadtest.papers.caraserve.link import LINK_MB_S
from shared.adapters.layout import image_bytes, layout_image
from shared.errors import InvalidRequest
from shared.wire.messages import LoraCard

CACHED = "cached"
STARTS = ("wait", "stream", "assist", "auto")
METRICS = ("ttft_ms", "token_ms", "latency_ms")
POOL_IMAGES, POOL_TURNS = 8, 8
SPARE_IMAGES = 6  # turns that overlap are not let go of in the order in which they came
PROMPTS = (32, 128)  # one or the other
OUTPUTS = (8, 24)  # from, to
TURN_TOKENS = max(PROMPTS) + OUTPUTS[1] + 2 * 64
WARM_TOKENS, WARM_DECODES = 512, 32  # the worker is to know its speeds
PROBES = 8
PATIENCE_S = 300.0  # for the last turn's end, after it came
QUANTILES = 20


@dataclass(frozen=True, slots=True)
class Traffic:
    """Poisson arrivals.

    Attributes:
        load: of a server: turns that would run at once if each took as long as one alone.
        num_turns: that come.
        shares: by adapter; none: all adapters in turn, more than the pool holds, so that few are
            there when they are asked for.
    """

    load: float
    num_turns: int
    shares: tuple[float, ...] = ()


class Turn(NamedTuple):
    """Seconds after the first, and numbers of tokens."""

    at_s: float
    adapter: int
    num_prompt: int
    num_output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What is to be measured.

    Attributes:
        rank: of all adapters.
        num_adapters: 0: some more than its pool holds.
        starts: `CACHED`, then some of `STARTS`.
        lone_s: what a turn takes alone; 0: to be measured.
    """

    rank: int
    starts: Sequence[str]
    traffics: Sequence[Traffic]
    num_adapters: int = 0
    lone_s: float = 0.0


def turns_of(traffic: Traffic, num_adapters: int, lone_s: float) -> list[Turn]:
    """The same for the same traffic."""
    rng = random.Random(int(1000 * traffic.load))
    at_s, turns = 0.0, []
    for number in range(traffic.num_turns):
        adapter = number % num_adapters
        if traffic.shares:
            (adapter,) = rng.choices(range(len(traffic.shares)), traffic.shares)
        turns.append(Turn(at_s, adapter, rng.choice(PROMPTS), rng.randint(*OUTPUTS)))
        at_s += rng.expovariate(traffic.load / lone_s)
    return turns


def measure_server(source: str, server: Server) -> dict[str, Any]:
    """``{"lone_s", "rows"}``: a row for each start and traffic.

    Args:
        source: folder or hub id of the model.

    Raises:
        InvalidRequest: the model takes no adapters.
    """
    return asyncio.run(_measure(source, server))


async def _measure(source: str, server: Server) -> dict[str, Any]:
    shape = shape_of(source)
    async with open_lab(models=f'["{source}"]') as lab:
        await lab.start("kvstore")
        await lab.start("worker", kv_bytes=str(1 << 30))
        card = lab.card.lora
        if card is None:
            raise InvalidRequest(f"{source}: it takes no adapters")
        one = make_adapters(lab.directory / "one", card, "all", [server.rank], 1)[0]
        image = _image_bytes(card, one)
        turns_bytes = POOL_TURNS * TURN_TOKENS * shape.token_bytes
        pool_bytes = POOL_IMAGES * image + turns_bytes
        count = server.num_adapters or pool_bytes // image + SPARE_IMAGES
        folder = lab.directory / "adapters"
        adapters = make_adapters(folder, card, "all", [server.rank], count)
        bench = _Server(lab, adapters, shape.vocab_size)
        all_bytes = (count + SPARE_IMAGES) * image + turns_bytes
        rows, lone_s = [], server.lone_s
        for start in server.starts:
            await bench.start(start, all_bytes if start == CACHED else pool_bytes)
            lone_s = lone_s or await bench.lone_s()
            for traffic in server.traffics:
                found = await bench.run(turns_of(traffic, count, lone_s))
                named = {"rank": server.rank, "load": traffic.load, "adapters": count}
                rows.append({"start": start, **named, **found})
                _say(rows[-1])
    return {"lone_s": round(lone_s, 4), "rows": rows}


class _Server:
    """Args:
    adapters: of which its turns ask.
    """

    def __init__(self, lab: Lab, adapters: list[MadeAdapter], vocab_size: int) -> None:
        self._lab = lab
        self._adapters = adapters
        self._vocab_size = vocab_size
        self._rng = random.Random(1)
        self._are_stored = False

    async def start(self, start: str, pool_bytes: int) -> None:
        """The worker again; by then it has taken in every adapter once."""
        lab = self._lab
        lab.mark_log("worker")
        lora_start = "wait" if start == CACHED else start
        await lab.start(
            "worker",
            lora_start=lora_start,
            link_mb_s=str(LINK_MB_S),
            kv_bytes=str(pool_bytes),
            report_interval_ms="50",
        )
        await lab.wait_connected()
        if start == "assist" or (start == "auto" and not torch.cuda.is_available()):
            await lab.wait_helpers()
        await lab.turn(self._prompt(WARM_TOKENS), WARM_DECODES)
        for adapter in self._adapters:
            await lab.turn(self._prompt(8), adapter=adapter.ref)
        if not self._are_stored:
            await lab.wait_written()
            self._are_stored = True

    async def lone_s(self) -> float:
        """What turns take that come one after the other, on an adapter that is there."""
        adapter, took = len(self._adapters) - 1, []
        for number in range(PROBES):
            turn = Turn(0.0, adapter, PROMPTS[number % len(PROMPTS)], sum(OUTPUTS) // 2)
            trace, ending = self._begin(turn)
            await ending
            took.append(trace.token_at[-1] - trace.started_at)
        return statistics.mean(took)

    async def run(self, turns: Sequence[Turn]) -> dict[str, Any]:
        """Milliseconds of each turn: to its first token, between tokens, and in all."""
        before = Counter(await self._lab.starts())
        begins, begun = time.monotonic(), []
        for turn in turns:
            await asyncio.sleep(begins + turn.at_s - time.monotonic())
            begun.append(self._begin(turn))
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(ending for _, ending in begun))
        starts = Counter(await self._lab.starts())
        starts.subtract(before)
        traces = [trace for trace, _ in begun]
        return {
            "starts": dict(+starts),
            "prompts": [turn.num_prompt for turn in turns],
            "prefill_ms": _quantiles([trace.prefill_ms for trace in traces]),
            "decode_ms": _quantiles([gap for trace in traces for gap in _gaps_ms(trace)]),
            "ttft_ms": _rounded([trace.ttft_ms for trace in traces]),
            "token_ms": _rounded([statistics.mean(_gaps_ms(trace)) for trace in traces]),
            "latency_ms": _rounded([_latency_ms(trace) for trace in traces]),
        }

    def _begin(self, turn: Turn) -> tuple[Trace, asyncio.Task[None]]:
        adapter = self._adapters[turn.adapter].ref
        return self._lab.begin(self._prompt(turn.num_prompt), turn.num_output, adapter)

    def _prompt(self, num_tokens: int) -> list[int]:
        return [self._rng.randrange(self._vocab_size) for _ in range(num_tokens)]


def _gaps_ms(trace: Trace) -> list[float]:
    """Between its tokens."""
    pairs = zip(trace.token_at, trace.token_at[1:], strict=False)
    return [(later - earlier) * 1e3 for earlier, later in pairs]


def _latency_ms(trace: Trace) -> float:
    return (trace.token_at[-1] - trace.started_at) * 1e3


def _quantiles(times_ms: list[float]) -> list[float]:
    """The least, the most, and what lies between, in equal shares."""
    return _rounded(statistics.quantiles(times_ms, n=QUANTILES, method="inclusive"))


def _rounded(times_ms: list[float]) -> list[float]:
    return [round(ms, 1) for ms in times_ms]


def _image_bytes(card: LoraCard, adapter: MadeAdapter) -> int:
    return image_bytes(card, layout_image(card, adapter.ref.ranks))


def _say(row: dict[str, Any]) -> None:
    means = {name: round(statistics.mean(row[name]), 1) for name in METRICS}
    named = {name: row[name] for name in ("start", "rank", "load", "adapters", "starts")}
    print({**named, **means}, file=sys.stderr, flush=True)
