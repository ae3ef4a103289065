"""``symphony bench scale``: what so many sessions cost a host that keeps them, and who waits.

A disk is filled with the blocks of `--sessions` sessions (the index as a kvstore writes it; their
pages are a hole in the slab, which reads as zeros), and Redis with their records. Then the kvstore
starts on it, beside a NATS, a Redis and a scheduler of their own: it reports its blocks to
Redis, is asked for its status, brings `--staged` sessions up, one after the other, and at last is
started once more, on a disk of which `--expiring` sessions come to their end in the same second.
All the while a task in its event loop looks how long that stands still (`watched`).

Beside that, without shells: how many pages a second the kvstore's core brings up of sessions among
so many, and the worker's core takes in, into a pool that `--pool-sessions` idle sessions fill; and
what planning a step takes in that pool.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.bench.scale.cores import ARENA_SESSIONS, kvstore_pages_per_s, worker_figures
from loadtest.bench.scale.filling import PAGE_BYTES
from loadtest.bench.scale.host import ScaleHost, open_host
from loadtest.bench.scale.sessions import EXPIRES_S, Sessions
from loadtest.bench.scale.staging import stage
from loadtest.bench.scale.watched import Beat
from services.kvstore.config import ARENA_BYTES_MIN
from shared.errors import InvalidRequest, PeerUnavailable

STATUSES = 20
POLL_S = 0.1
EXPIRY_LEAD = 2.0  # starts may take so much longer than the one before
EXPIRY_SPARE_S = 5.0
MB = 1e6
SERVED = ("tell", "status", "stage", "expire")  # phases in which requests may wait


def run(argv: list[str]) -> dict[str, Any]:
    """``kv_rss_mb``, ``redis_mb``, ``start_s``, ``stage_pages_per_s``, ``worker_pages_per_s``,
    ``plan_step_ms``, ``loop_stall_ms_max``, ``status_ms``, and what those are made of.

    Raises:
        InvalidRequest: an option is wrong.
        PeerUnavailable: a process failed, or did something else than it was to do.
    """
    args = _parser().parse_args(argv)
    numbers = (
        args.sessions, args.blocks, args.layers, args.staged, args.expiring, args.pool_sessions,
    )  # fmt: skip
    if min(numbers) < 1:
        raise InvalidRequest(
            "--sessions, --blocks, --layers, --staged, --expiring, --pool-sessions: use numbers"
            " from 1 on"
        )
    sessions = Sessions(args.sessions, args.blocks, args.layers)
    with tempfile.TemporaryDirectory(prefix="symphony-scale-", dir=args.folder) as folder:
        served = asyncio.run(_serve(Path(folder), sessions, args))
    _say("the cores alone")
    pages_per_s, kvstore_us = kvstore_pages_per_s(sessions, args.staged)
    worker_per_s, worker_us, planning = worker_figures(
        args.pool_sessions, sessions.num_blocks, sessions.num_layers, args.staged
    )
    return {
        "sessions": sessions.num,
        "blocks": sessions.num_blocks_total,
        "pages": sessions.num_blocks_total * sessions.num_layers,
        **served,
        "stage_pages_per_s": round(pages_per_s),
        "stage_us": kvstore_us,
        "worker_pages_per_s": round(worker_per_s),
        "worker_us": worker_us,
        "plan_step_ms": planning["plan_ms"],
        "plan_step_worst_ms": planning["plan_worst_ms"],
    }


async def _serve(folder: Path, sessions: Sessions, args: argparse.Namespace) -> dict[str, Any]:
    _say(f"writing {sessions.num_blocks_total:,} blocks")
    await asyncio.to_thread(sessions.fill, folder / "full" / "kv")
    async with open_host(folder) as host:
        redis_bytes = [await host.redis_bytes()]
        await host.write_records(sessions.records())
        redis_bytes.append(await host.redis_bytes())
        settings = {
            "disk_bytes_max": str(sessions.disk_bytes_max),
            "arena_bytes": str(max(ARENA_SESSIONS * sessions.num_pages * PAGE_BYTES,
                                   ARENA_BYTES_MIN)),
            "expiry_s": str(EXPIRES_S),
        }  # fmt: skip
        _say("an empty disk, to compare with")
        await host.start(folder / "empty", settings | {"host_id": "empty"})
        empty = host.memory()
        host.stop()
        _say("starting on the full one")
        with host.phase("start"):
            start_s = await host.start(folder / "full", settings)
        started = host.memory()
        with host.phase("tell"):
            tell_s = await host.wait_told(sessions.num)
        redis_bytes.append(await host.redis_bytes())
        await host.wait_counted(sessions.num)
        with host.phase("status"):
            status_ms = await host.status_ms(STATUSES)
        with host.phase("stage"):
            staged_s = await stage(host, sessions, args.staged)
        full = host.memory()
        host.stop()
        await _expire(host, sessions, folder / "full", settings, start_s, args.expiring)
        beats = host.beats()
    return {
        "kv_rss_mb": round(full["rss"] / MB, 1),
        "kv_anon_mb": round(full["anon"] / MB, 1),
        "kv_block_bytes": round((started["anon"] - empty["anon"]) / sessions.num_blocks_total),
        "redis_mb": round(redis_bytes[-1] / MB, 1),
        "redis_session_bytes": round((redis_bytes[2] - redis_bytes[1]) / sessions.num),
        "redis_record_bytes": round((redis_bytes[1] - redis_bytes[0]) / sessions.num),
        "start_s": round(start_s, 2),
        "tell_s": round(tell_s, 2),
        "staged_ms": round(statistics.median(staged_s) * 1e3, 2),
        "status_ms": round(status_ms, 1),
        **stalls(beats),
    }


async def _expire(
    host: ScaleHost,
    sessions: Sessions,
    data_dir: Path,
    settings: Mapping[str, str],
    start_s: float,
    num: int,
) -> None:
    """Start once more, and see so many sessions come to their end."""
    num = min(num, sessions.num)
    in_s = EXPIRY_LEAD * start_s + EXPIRY_SPARE_S
    _say(f"{num:,} sessions expire in {in_s:.0f} s")
    ends_s = int(time.time() + in_s)
    sessions.stamp(data_dir / "kv", range(num), ends_s - int(EXPIRES_S))
    await host.start(data_dir, settings)
    if (await host.stats()).disk_blocks != sessions.num_blocks_total:
        raise PeerUnavailable("the kvstore took longer to start than before: run this again")
    await asyncio.sleep(max(ends_s - time.time() - 1.0, 0.0))
    left = sessions.num_blocks_total - num * sessions.num_blocks
    with host.phase("expire"):
        while (await host.stats()).disk_blocks > left:
            await asyncio.sleep(POLL_S)
            if time.time() > ends_s + in_s:
                raise PeerUnavailable("sessions did not expire")
    if (await host.stats()).disk_blocks != left:
        raise PeerUnavailable("others than those sessions expired")


def stalls(beats: Mapping[str, Sequence[Beat]]) -> dict[str, Any]:
    """How long the loop stood still at most: while it served, and in each phase; and of the longest
    times how much its own thread computed.
    """
    late_ms = {name: _max_ms(beat.late_s for beat in each) for name, each in beats.items()}
    return {
        "loop_stall_ms_max": max(
            (late_ms[name] for name in SERVED if name in late_ms), default=0.0
        ),
        "loop_stall_ms": late_ms,
        "loop_busy_ms": {
            name: _max_ms(beat.busy_s for beat in each) for name, each in beats.items()
        },
    }


def _max_ms(seconds: Any) -> float:
    return round(max(seconds, default=0.0) * 1e3, 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="symphony bench scale", description=__doc__)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--blocks", type=int, default=8, help="of 64 tokens, of a session")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--staged", type=int, default=500, help="sessions that come up")
    parser.add_argument(
        "--expiring", type=int, default=100, help="sessions that expire in the same second"
    )
    parser.add_argument(
        "--pool-sessions", type=int, default=2000, help="idle ones in a worker's pool"
    )
    parser.add_argument(
        "--folder", type=Path, help="for the disk (default: where temporary files are)"
    )
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
