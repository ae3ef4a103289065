"""``symphony bench core``: what the decisions of every service cost, without a device or a network.

The production cores. **Worker**: turns of `--context` tokens and a model of `--layers` layers:
planning a step and taking in its result while all of them decode, beside the same with short
contexts; and how many pages a second it stages, enters as loaded, expects and takes from idle
sessions. Everything of one kind happens in the event loop at once, so its milliseconds are how long
that stands still. **Kvstore**: a session of as many pages is leased, committed, written, staged,
displaced, and comes up from disk; the fastest of some rounds.

The others in microseconds of CPU time for one event, the fastest of `--rounds` (`timing.py`).
**Scheduler**: fleets of so many `--workers` with `--turns` turns on each. **Tracker**: beside so
many live `--advisories`. **Frontend**: a token of `--streams` chats that are streamed, all of its
application but the sockets. **Names**: finding one of so many adapters' `--names`, which a kvstore
has put into a Redis of its own, and a chat with the base model beside none and beside all of them.
**Messages**: reading and writing those of them that come most often.
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any

from loadtest.bench.core import frontend, kvstore, messages, names, scheduler, tracker, worker
from shared.errors import InvalidRequest

PARTS = ("worker", "kvstore", "scheduler", "tracker", "frontend", "names", "messages")


def run(argv: list[str]) -> dict[str, Any]:
    """Milliseconds and pages a second of worker and kvstore, microseconds of the others, by part.

    Raises:
        InvalidRequest: an option is wrong.
    """
    args = _parser().parse_args(argv)
    wanted = args.only.split(",") if args.only else PARTS
    fleets = [int(part) for part in args.workers.split(",") if part.isdecimal()]
    if not set(wanted) <= set(PARTS):
        raise InvalidRequest(f"--only {args.only}: use some of {','.join(PARTS)}")
    if len(fleets) != len(args.workers.split(",")) or min(args.turns, args.rounds, *fleets) < 1:
        raise InvalidRequest("--workers, --turns, --rounds: use numbers from 1 on")
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "worker": lambda: worker.measure(args.turns, args.context, args.layers, args.steps),
        "kvstore": lambda: kvstore.measure(args.context, args.layers),
        "scheduler": lambda: scheduler.measure(fleets, args.turns, args.rounds),
        "tracker": lambda: tracker.measure(args.advisories, args.rounds),
        "frontend": lambda: frontend.measure(args.streams, args.rounds),
        "names": lambda: names.measure(args.names, args.rounds),
        "messages": lambda: messages.measure(args.rounds),
    }
    figures: dict[str, Any] = {}
    for name in PARTS:
        if name in wanted:
            found = parts[name]()
            for key, values in found.items():
                print(key, values, file=sys.stderr, flush=True)
            figures |= found
    return figures


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="symphony bench core",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--turns", type=int, default=64, help="that a worker runs")
    parser.add_argument("--context", type=int, default=32_000)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--workers", default="8,64,1000", help="of each fleet, 8 a host")
    parser.add_argument("--advisories", type=int, default=100_000, help="that are live")
    parser.add_argument("--streams", type=int, default=512)
    parser.add_argument("--names", type=int, default=10_000, help="of adapters")
    parser.add_argument("--rounds", type=int, default=15)
    return parser
