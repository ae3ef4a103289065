"""`bench chaos`: faults of every kind, on all production cores in virtual time (`--sim`)."""

import argparse
import time
from typing import Any

from loadtest.world.campaign import Shrunk, Tally, run_campaign, shrink
from loadtest.world.mutants import run_mutants
from shared.errors import InvalidRequest

SHRUNK_MAX = 3
PROGRESS_SEEDS = 500


def run(argv: list[str]) -> dict[str, Any]:
    """Run what the command line asks for; ``violations`` in the result is empty if all held."""
    parser = argparse.ArgumentParser(prog="symphony bench chaos", description=__doc__)
    parser.add_argument("--sim", action="store_true", help="seeded worlds in virtual time")
    parser.add_argument("--mutants", action="store_true", help="break the cores, and be found out")
    parser.add_argument("--seeds", type=int, default=2000, help="how many (default 2000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    options = parser.parse_args(argv)
    if options.seeds < 1:
        raise InvalidRequest("--seeds: at least 1")
    if options.mutants:
        return run_mutants(options.first, options.seeds)
    if not options.sim:
        raise InvalidRequest("bench chaos: give --sim or --mutants")
    return _simulate(options.first, options.seeds)


def _simulate(first: int, num: int) -> dict[str, Any]:
    started_s = time.monotonic()
    told = 0

    def on_progress(tally: Tally) -> None:
        nonlocal told
        if tally.num_seeds - told >= PROGRESS_SEEDS:
            told = tally.num_seeds
            print(f"{tally.num_seeds} of {num} seeds, {len(tally.failures)} failed", flush=True)

    tally = run_campaign(first, num, on_progress)
    took_s = time.monotonic() - started_s
    shrunk = [found for seed in sorted(tally.failures)[:SHRUNK_MAX] if (found := shrink(seed))]
    for each in shrunk:
        _tell(each)
    return {
        "seeds": tally.num_seeds,
        "first": first,
        "took_s": round(took_s, 1),
        "virtual_s": round(tally.virtual_s),
        "events": tally.num_events,
        "messages_lost": tally.num_lost,
        "events_dropped": tally.num_dropped,
        "turns": dict(tally.ends),
        "jobs": dict(tally.job_ends),
        "faults": dict(tally.faults),
        "violations": [f"seed {seed}: {text}" for seed, text in sorted(tally.failures.items())],
        "repeat": f"./symphony bench chaos --sim --seeds {num} --first {first}",
    }


def _tell(found: Shrunk) -> None:
    print(f"\nseed {found.seed} fails: {found.why}")
    print("with nothing but:")
    for fault in found.faults.once:
        print(f"  {fault.at_ns / 1e9:8.3f} s {fault.kind}")
    lasting = sorted(found.faults.kinds - {fault.kind for fault in found.faults.once})
    print(f"  all the time: {', '.join(lasting) or 'nothing'}")
    print("what happened:")
    for line in found.trace:
        print(f"  {line}")
