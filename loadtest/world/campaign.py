"""Many seeds on all cores, and what a failing one comes down to."""

import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context

from loadtest.sim.services.faults import Faults, draw_faults
from loadtest.world.run import run_seed, run_world
from loadtest.world.world import Options, World

CHUNK = 10  # seeds that a process takes at once
TRACE_LINES = 40


@dataclass
class Tally:
    """What some seeds came to.

    Attributes:
        ends: turns by how they ended; `job_ends` the same of requests for one-shot jobs.
        met: how often what the worlds are for happened: rare events of workers.
        failures: of each seed that failed, the first line of why.
    """

    num_seeds: int = 0
    num_events: int = 0
    num_lost: int = 0
    num_dropped: int = 0
    virtual_s: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)
    job_ends: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)

    def add(self, other: "Tally") -> None:
        """Count another one's seeds in."""
        self.num_seeds += other.num_seeds
        self.num_events += other.num_events
        self.num_lost += other.num_lost
        self.num_dropped += other.num_dropped
        self.virtual_s += other.virtual_s
        self.ends += other.ends
        self.job_ends += other.job_ends
        self.faults += other.faults
        self.met += other.met
        self.failures |= other.failures

    def count(self, world: World) -> None:
        """Count a world that ran to its end."""
        timeline, ledger = world.deployment.timeline, world.ledger
        self.num_events += timeline.num_events
        self.num_lost += world.deployment.wires.num_lost
        self.num_dropped += world.num_dropped
        self.virtual_s += timeline.now_ns / 1e9
        self.ends.update(str(turn.end) for turn in ledger.turns.values())
        self.job_ends.update(end for ends in ledger.job_ends.values() for end in ends)
        self.faults.update(fault.kind for fault in world.faults.once)
        for worker in world.workers:
            core, device = worker.core, worker.device
            self.met["prefix hit"] += core.history.num_prefix_hits
            self.met["eviction"] += core.pool.num_evicted
            self.met["write-behind skipped"] += core.write_behind.num_given_up
            self.met["preemption"] += core.planner.num_preemptions
            self.met["staging failed"] += core.stager.num_failures
            self.met["deferred admission"] += worker.num_deferred
            self.met["move"] += worker.num_moved
            self.met["adapter streamed"] += device.num_streamed if device is not None else 0
            self.met["adapter assisted"] += device.num_assisted if device is not None else 0


def run_seeds(first: int, num: int, *, stop_at_first: bool = False) -> Tally:
    """Run seeds one after the other, in this process."""
    tally = Tally()
    for seed in range(first, first + num):
        tally.num_seeds += 1
        try:
            tally.count(run_seed(seed))
        except Exception as error:
            tally.failures[seed] = why(error)
            if stop_at_first:
                break
    return tally


def run_campaign(
    first: int, num: int, on_progress: Callable[[Tally], None] = lambda _: None
) -> Tally:
    """Run seeds on all cores."""
    tally = Tally()
    chunks = [(at, min(CHUNK, first + num - at)) for at in range(first, first + num, CHUNK)]
    # What the modules hold is garbage never, and need not be looked through again and again.
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), gc.freeze) as pool:
        for part in pool.map(run_seeds, *zip(*chunks, strict=True)):
            tally.add(part)
            on_progress(tally)
    return tally


def why(error: BaseException) -> str:
    """An exception in one line."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The least that still fails of a failing seed.

    Attributes:
        faults: that are needed for it.
        trace: the end of what happened.
    """

    seed: int
    why: str
    faults: Faults
    trace: list[str]


def shrink(seed: int, within_s: float = 30.0, options: Options | None = None) -> Shrunk | None:
    """Leave out faults for as long as the seed fails without them; None if it does not fail."""
    options = options or Options()
    until_s = time.monotonic() + within_s
    faults = draw_faults(seed, options.faults_for_ns)
    best = _failing(seed, options, faults)
    if best is None:
        return None
    is_smaller = True
    while is_smaller and time.monotonic() < until_s:
        is_smaller = False
        for smaller in _smaller(best.faults):
            found = _failing(seed, options, smaller)
            if found is not None:
                best, is_smaller = found, True
                break
    return best


def _smaller(faults: Faults) -> Iterator[Faults]:
    for kind in sorted(faults.kinds):
        yield faults.without(kind)
    for fault in faults.once:
        yield faults.without(fault)


def _failing(seed: int, options: Options, faults: Faults) -> Shrunk | None:
    world = World(seed, options, faults)
    try:
        run_world(world)
    except Exception as error:
        return Shrunk(seed, why(error), faults, world.deployment.timeline.trace[-TRACE_LINES:])
    return None
