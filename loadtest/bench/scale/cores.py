"""What the decisions cost among so many sessions: the production cores, without their shells."""

import gc
import random
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from loadtest.bench.core.worker import WorkerBench
from loadtest.bench.scale.filling import PAGE_BYTES
from loadtest.bench.scale.sessions import FINGERPRINT, Sessions
from services.kvstore.core import (
    Effect,
    FoundBlocks,
    KvCore,
    Limits,
    LoadOutcome,
    Open,
    ReadPages,
    Release,
    Stage,
)
from shared.blocks import BLOCK_TOKENS
from shared.ids import WorkerId

WORKER, INCARNATION = WorkerId("bench"), "i"
ARENA_SESSIONS = 64
TURNS = 64
STEPS = 256  # each turn begins four blocks
NEVER_NS = 1 << 60
SEED = 1

T = TypeVar("T")


def kvstore_pages_per_s(sessions: Sessions, num: int) -> tuple[float, dict[str, float]]:
    """Sessions come up from disk, one after the other at random, take the pages of earlier ones,
    and are released: pages a second over all that the core takes for it, and us a session by kind
    of event.
    """
    limits = Limits(disk_bytes_max=1 << 62, expiry_ns=NEVER_NS, noted_ns=NEVER_NS)
    core = KvCore(limits)
    core.on_disk_found(FoundBlocks.of(sessions.stored(0)), 0)
    _keep_for_good()
    core.on_arena(PAGE_BYTES, min(ARENA_SESSIONS, sessions.num) * sessions.num_pages)
    core.on_open(Open(WORKER, INCARNATION, FINGERPRINT, sessions.num_layers, PAGE_BYTES), 0)
    rng = random.Random(SEED)
    took = _Took()
    for now_ns in range(1, 1 + num):
        keys = sessions.keys(rng.randrange(sessions.num))
        asked = Stage(WORKER, INCARNATION, sessions.num_layers, PAGE_BYTES, keys)
        pinned, effects = took.time("stage", partial(core.on_stage, asked, now_ns))
        assert pinned.num_blocks == len(keys), "all of it is on disk"
        _load(core, effects, now_ns, took)
        done = Release(WORKER, INCARNATION, pinned.ticket)
        took.time("release", partial(core.on_release, done, now_ns))
    return took.per_s(num * sessions.num_pages), took.us_each(num)


def worker_figures(
    num_idle: int, num_blocks: int, num_layers: int, num: int
) -> tuple[float, dict[str, float], dict[str, float]]:
    """In a pool that idle sessions fill: pages a second of turns whose history the kvstore has,
    over all that the core takes for them; us a turn by kind of event; and what planning a step of
    `TURNS` decodes takes, ms.
    """
    context = num_blocks * BLOCK_TOKENS + 1
    bench = WorkerBench(TURNS, context, num_layers, num_idle)
    _keep_for_good()
    took, num_pages = _Took(), 0
    for number in range(num):
        seconds, pages = bench.come_back(f"c{number}", TURNS + num_idle + number)
        num_pages += pages
        for name, each_s in seconds.items():
            took.add(name, each_s)
    planning = bench.decode(min(STEPS, context // 2))
    return took.per_s(num_pages), took.us_each(num), planning


def _keep_for_good() -> None:
    """What is there by now stays: the collector need not look through it, as in a service."""
    gc.collect()
    gc.freeze()


class _Took:
    """Seconds by kind of event."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = defaultdict(list)

    def time(self, name: str, call: Callable[[], T]) -> T:
        began_s = time.perf_counter()
        result = call()
        self.add(name, time.perf_counter() - began_s)
        return result

    def add(self, name: str, seconds: float) -> None:
        self._seconds[name].append(seconds)

    def per_s(self, num_pages: int) -> float:
        """Pages a second over everything."""
        return num_pages / sum(sum(each) for each in self._seconds.values())

    def us_each(self, num: int) -> dict[str, float]:
        """Microseconds of one of `num`, by kind."""
        return {name: round(sum(seconds) / num * 1e6, 1) for name, seconds in self._seconds.items()}


def _load(core: KvCore, effects: list[Effect], now_ns: int, took: _Took) -> None:
    """The loader answers until it is asked no more."""
    while batches := [each.reads for each in effects if isinstance(each, ReadPages)]:
        effects = []
        for batch in batches:
            results = [(run, [LoadOutcome.READY] * len(run.pages)) for run in batch]
            effects += took.time("loaded", partial(core.on_loaded, results, 0, now_ns))
