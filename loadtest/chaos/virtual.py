"""Faults of every kind, on all production cores in virtual time (`--sim`)."""

import time
from typing import Any

from loadtest.world.campaign import Shrunk, Tally, run_campaign, shrink

SHRUNK_MAX = 3
PROGRESS_SEEDS = 500


def run(first: int, num: int) -> dict[str, Any]:
    """Run `num` seeded worlds from seed `first` on; ``violations`` is empty if all held."""
    started_s = time.monotonic()
    shown = 0

    def on_progress(tally: Tally) -> None:
        nonlocal shown
        if tally.num_seeds - shown >= PROGRESS_SEEDS:
            shown = tally.num_seeds
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
