"""``symphony bench hosts``: how fast one kvstore's pages come into another one's arena.

Two processes. The far one has pages in its database and serves them as a kvstore does; the near one
fetches all of them into its arena, where each is checked. Beside that, in turns and with the same
pages: bare TCP between the two, the near one's own database by its loader, copying in memory, and
filling a new arena with memory. What is read was written before, so the kernel has it in memory.

Then turns (`turns`; not with `--pages-only`): workers on three hosts, and histories of `--lengths`
tokens on one of them. `crossover_tokens` is the length from which on fetching all of it is faster
than computing all of it; `decided_tokens` the one from which on a worker that decides for itself
fetches at least half, and `is_crossover_used` whether at every length it took the faster way, or
one that was as fast. `cut_over_ms`: a link goes dead in the middle of the longest history; from
then to the turn's first token, less what computing all of it takes. `cut_tokens`: of its reply.
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

from loadtest.bench.hosts.shape import Shape
from loadtest.bench.hosts.turns import measure_turns
from loadtest.bench.options import numbers
from loadtest.links import LOOPBACK, Link, shaped_link
from loadtest.models import add_model_options
from shared.blocks import BLOCK_TOKENS
from shared.errors import InvalidRequest, PeerUnavailable

KIB = 1024
STOP_S = 30.0


def run(argv: list[str]) -> dict[str, Any]:
    """``raw_tcp_gb_s``, ``peer_gb_s``, ``disk_gb_s``, ``memcpy_gb_s`` and ``fill_gb_s``, medians of
    the rounds.

    Raises:
        InvalidRequest: an option is wrong, or no link can be shaped here.
        PeerUnavailable: one of the two hosts failed.
    """
    args = _parser().parse_args(argv)
    shape = Shape(args.blocks, args.layers, int(args.page_kb * KIB))
    if min(shape.num_blocks, shape.num_layers, shape.page_bytes, args.rounds) < 1:
        raise InvalidRequest("--blocks, --layers, --page-kb, --rounds: use numbers from 1 on")
    if args.link_gbit is not None and args.link_gbit <= 0:
        raise InvalidRequest("--link-gbit: use a number above 0")
    lengths = numbers("lengths", args.lengths, BLOCK_TOKENS)
    if min(args.turn_rounds, args.cuts) < 1:
        raise InvalidRequest("--turn-rounds, --cuts: use numbers from 1 on")
    link: AbstractContextManager[Link] = (
        nullcontext(LOOPBACK) if args.link_gbit is None else shaped_link(args.link_gbit)
    )
    with _leaving_nothing(), link as each:
        speeds = _measure(each, shape, args.rounds)
    result: dict[str, Any] = {
        "page_kb": args.page_kb,
        "mb": round(shape.num_bytes / 1e6),
        "link_gbit": args.link_gbit,
        **{f"{name}_gb_s": round(speed, 3) for name, speed in speeds.items()},
        "peer_over_raw_tcp": round(speeds["peer"] / speeds["raw_tcp"], 3),
        "fill_over_memcpy": round(speeds["fill"] / speeds["memcpy"], 3),
    }
    print(
        f"pages of {args.page_kb:g} KiB: from a peer {result['peer_gb_s']:g} GB/s, bare TCP"
        f" {result['raw_tcp_gb_s']:g}, from disk {result['disk_gb_s']:g}, in memory"
        f" {result['memcpy_gb_s']:g}; a new arena is filled at {result['fill_gb_s']:g}"
    )
    return result if args.pages_only else result | asyncio.run(measure_turns(args, lengths))


@contextmanager
def _leaving_nothing() -> Iterator[None]:
    """SIGTERM ends the body as an error would, so that namespaces and folders go with it. In
    another thread than the main one, which hears no signals, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _end(signum: int, frame: FrameType | None) -> None:
    signal.signal(signum, signal.SIG_IGN)  # another one does not end the tidying up
    raise SystemExit(128 + signum)


def _measure(link: Link, shape: Shape, rounds: int) -> dict[str, float]:
    told: dict[str, Any] = {
        "num_blocks": shape.num_blocks,
        "num_layers": shape.num_layers,
        "page_bytes": shape.page_bytes,
        "host": link.host,
    }
    with (
        tempfile.TemporaryDirectory(prefix="symphony-hosts-") as folder,
        tempfile.TemporaryDirectory(prefix="symphony-hosts-", dir="/dev/shm") as memory,
        subprocess.Popen(
            _command(link.far, "far", {**told, "folder": f"{folder}/far"}),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as far,
    ):  # fmt: skip
        assert far.stdin is not None and far.stdout is not None
        try:
            ports = _line(far.stdout.readline(), "far")
            told |= {
                "folder": f"{folder}/near",
                "arena": str(Path(memory) / "arena"),
                "ports": ports,
                "rounds": rounds,
            }
            near = subprocess.run(
                _command(link.near, "near", told), stdout=subprocess.PIPE, check=False
            )
            speeds: dict[str, float] = _line(near.stdout, "near")
        finally:
            far.stdin.close()
            try:
                far.wait(STOP_S)
            except subprocess.TimeoutExpired:
                far.kill()
    return speeds


def _command(before: list[str], side: str, told: dict[str, Any]) -> list[str]:
    return [*before, sys.executable, "-m", f"loadtest.bench.hosts.{side}", json.dumps(told)]


def _line(said: bytes, side: str) -> Any:
    if not said.strip():
        raise PeerUnavailable(f"the {side} host failed")
    return json.loads(said.splitlines()[-1])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="symphony bench hosts", description=__doc__)
    parser.add_argument("--page-kb", type=float, default=256, help="of an 8B model: 256")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=64, help="of 64 tokens each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--link-gbit",
        type=float,
        help="put a link of this speed between the two (root, Linux); without it: loopback. Of"
        " turns the far host sends no more than that",
    )
    parser.add_argument("--pages-only", action="store_true", help="no turns")
    parser.add_argument(
        "--lengths", default="64,128,256,512,1024,2048", help="of histories, tokens"
    )
    parser.add_argument("--turn-rounds", type=int, default=3, help="of each length and way")
    parser.add_argument("--cuts", type=int, default=3)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument(
        "--emulate", default="", help="a latency profile in place of a model, with its true pages"
    )
    add_model_options(parser)
    return parser
