"""``symphony bench http``: what a deployment adds to a request, beside a bare FastAPI route.

The deployment has an emulated worker whose forward pass takes no time; every request is a
streamed chat turn of one token. A closed loop keeps `--concurrency` requests in flight: the most
it can do. An open loop sends at fixed rates: the latency below that. The load, NATS and
every service share this machine.

Then `--streams` chats are streamed by a deployment whose worker makes 25 tokens a second for each:
what a token costs each process.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import orjson
import uvloop

from cli.base.children import free_port, start_child, stop_child
from loadtest.bench import http_streams
from loadtest.deployment import deployed
from loadtest.http_load import Answers, closed_loop, open_loop
from loadtest.servers import wait_for_port

PATH = "/v1/chat/completions"
ROUNDS = 3
STREAM_ROUNDS = 3  # in one


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return requests per second and time to the first byte of both sides."""
    parser = argparse.ArgumentParser(prog="symphony bench http", description=__doc__)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rates", default="250,500,1000", help="open-loop requests per second")
    parser.add_argument("--streams", type=int, default=128, help="0: not measured")
    args = parser.parse_args(argv)
    figures = _measure_both(args)
    if args.streams:
        figures["streaming"] = _measure_streams(args)
    return figures


def _measure_both(args: argparse.Namespace) -> dict[str, Any]:
    with deployed("--emulate", "zero") as deployment:
        bare_port = free_port(but=deployment.port)
        command = [sys.executable, "-m", "loadtest.bench.bare_app", str(bare_port)]
        bare = start_child(command, log_path=deployment.logs / "bare.log")
        try:
            wait_for_port(bare, bare_port, "the bare route")
            return _measure(args, bare_port, deployment.port)
        finally:
            stop_child(bare)


def _measure_streams(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="symphony-bench-") as name:
        profile = http_streams.write_profile(Path(name))
        workers = ("--emulate", str(profile), "--workers", str(http_streams.NUM_WORKERS))
        with deployed(*workers) as deployment:
            seconds = STREAM_ROUNDS * args.seconds
            return uvloop.run(
                http_streams.measure(deployment.port, deployment.data_dir, args.streams, seconds)
            )


def _measure(args: argparse.Namespace, bare_port: int, our_port: int) -> dict[str, Any]:
    message = {"role": "user", "content": "How are you today?"}
    body = orjson.dumps({"model": "zero", "messages": [message], "max_tokens": 1, "stream": True})
    rounds: dict[str, list[Answers]] = {"bare": [], "ours": []}
    for number in range(ROUNDS + 1):
        for side, port in (("bare", bare_port), ("ours", our_port)):
            load = closed_loop(port, PATH, body, concurrency=args.concurrency, seconds=args.seconds)
            result = uvloop.run(load)
            print(f"{side}: {result.requests_per_s:.0f} req/s", file=sys.stderr, flush=True)
            if number:  # the first round warms up
                rounds[side].append(result)
    bare, ours = (_best(rounds[side]) for side in ("bare", "ours"))
    return {
        "requests_per_s": round(ours.requests_per_s),
        "first_byte_p50_ms": round(ours.percentile_ms(50), 2),
        "first_byte_p99_ms": round(ours.percentile_ms(99), 2),
        "num_errors": sum(result.num_errors for result in rounds["ours"]),
        "bare_requests_per_s": round(bare.requests_per_s),
        "bare_first_byte_p50_ms": round(bare.percentile_ms(50), 2),
        "bare_first_byte_p99_ms": round(bare.percentile_ms(99), 2),
        "added_p50_ms": round(ours.percentile_ms(50) - bare.percentile_ms(50), 2),
        "added_p99_ms": round(ours.percentile_ms(99) - bare.percentile_ms(99), 2),
        "unloaded": _unloaded(bare_port, our_port, body),
        "open_loop": _open_loop(args, bare_port, our_port, body),
    }


def _open_loop(
    args: argparse.Namespace, bare_port: int, our_port: int, body: bytes
) -> dict[str, dict[str, float]]:
    """Latency at given rates, below saturation: what a user sees, without a loop's own queue."""
    found = {}
    for rate in (float(text) for text in args.rates.split(",")):
        row: dict[str, float] = {}
        for side, port in (("bare", bare_port), ("ours", our_port)):
            load = open_loop(
                port, PATH, body, rate=rate, connections_max=args.concurrency, seconds=args.seconds
            )
            result = uvloop.run(load)
            row[f"{side}_p50_ms"] = round(result.percentile_ms(50), 2)
            row[f"{side}_p99_ms"] = round(result.percentile_ms(99), 2)
        row["added_p50_ms"] = round(row["ours_p50_ms"] - row["bare_p50_ms"], 2)
        found[f"{rate:g}_per_s"] = row
    return found


def _unloaded(bare_port: int, our_port: int, body: bytes) -> dict[str, float]:
    """The same with one request in flight: latency without queueing."""
    found = {}
    for side, port in (("bare", bare_port), ("ours", our_port)):
        result = uvloop.run(closed_loop(port, PATH, body, concurrency=1, seconds=2.0))
        found[f"{side}_p50_ms"] = round(result.percentile_ms(50), 2)
        found[f"{side}_p99_ms"] = round(result.percentile_ms(99), 2)
    return found


def _best(results: list[Answers]) -> Answers:
    """The median round by throughput."""
    return sorted(results, key=lambda r: r.requests_per_s)[len(results) // 2]
