"""``symphony bench kv``: how fast pages come into a kvstore's arena, from a peer and from its disk.

By the kvstore's own client and loader, two batches of 8 MiB at a time as its core sends them, layer
by layer. **peer**: another process serves pages that its kernel has in memory, over loopback; with
so many `--connections`, and with the number that the client finds. `--pace-mb` limits each
connection in the kernel, as a long or shared network would. **disk**: cold, so many reads at a time
(`--depths`), and as many as the loader finds. Variants take turns; figures are medians of
`--rounds`, after as many passes of what is found as `--learn`. CPU seconds a GB say what bounds a
link that no connection fills: of the process that receives and of the one that sends.
"""

import argparse
import multiprocessing
import os
import queue
import resource
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.bench.page_cache import drop_cached
from loadtest.options import numbers
from services.kvstore.core import Concurrency, DiskWrite, LoadOutcome, PageReads, ReadPages
from services.kvstore.peers.client import PeerClient
from services.kvstore.peers.peer_limits import CLIENT_CONNECTIONS, ClientLimits, Identity
from services.kvstore.peers.server import PeerServer
from services.kvstore.peers.sources import DiskSource
from services.kvstore.tiers.disk import Disk
from services.kvstore.tiers.disk.loader import NUM_THREADS, Loader
from services.kvstore.tiers.disk.slab import SUFFIX
from services.kvstore.tiers.executors import ThreadExecutor
from shared.arena import Arena, Bytes, PageState, checksum
from shared.blocks import BLOCK_TOKENS, BlockKey, chain_keys, root_key
from shared.errors import InvalidRequest
from shared.runtime.clock import SystemClock

MIB = 1024**2
BATCH_BYTES = 8 * MIB
PATIENCE_S = 600.0
SO_MAX_PACING_RATE = 47  # of asm-generic/socket.h: bytes a second of one connection
SECRET = b"bench kv"

Submit = Callable[[list[PageReads]], None]
Cpu = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Shape:
    """Blocks of random bytes, all layers of each."""

    num_blocks: int
    num_layers: int
    page_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.num_blocks * self.num_layers * self.page_bytes

    def keys(self) -> list[BlockKey]:
        tokens = range(self.num_blocks * BLOCK_TOKENS)
        return chain_keys(root_key("bench", "kv"), tokens, BLOCK_TOKENS)

    def store(self, folder: Path) -> Disk:
        """A database that holds them."""
        disk = Disk(folder, 2 * self.num_bytes)
        random = np.random.default_rng(1)
        at = list(range(self.num_layers))
        for number, key in enumerate(self.keys()):
            pages: Bytes = random.integers(0, 256, (self.num_layers, self.page_bytes), np.uint8)
            sums = [checksum(page.data) for page in pages]
            tokens = [number] * BLOCK_TOKENS
            write = DiskWrite(number, key, key, tokens, "bench", self.page_bytes, at, sums)
            with disk.write(now_s=0) as writer:
                writer.put(write, pages)
        disk.sync()
        return disk

    def batches(self) -> list[list[PageReads]]:
        """Of everything, layer by layer."""
        keys, size = self.keys(), max(BATCH_BYTES // self.page_bytes, 1)
        batches = []
        for layer in range(self.num_layers):
            for first in range(0, self.num_blocks, size):
                some = list(range(first, min(first + size, self.num_blocks)))
                pages = [layer * self.num_blocks + number for number in some]
                of_some = [keys[number] for number in some]
                reads = PageReads(layer, self.page_bytes, some, of_some, pages, [1] * len(some))
                batches.append([reads])
        return batches


def run(argv: list[str]) -> dict[str, Any]:
    """By variant, GB/s and more.

    Raises:
        InvalidRequest: an option is wrong.
    """
    args = _parser().parse_args(argv)
    shape = Shape(args.blocks, args.layers, int(args.page_kib * 1024))
    if min(shape.num_blocks, shape.num_layers, shape.page_bytes, args.rounds, args.learn) < 1:
        raise InvalidRequest("--blocks, --layers, --page-kib, --rounds, --learn: from 1 on")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        arena_path = Path("/dev/shm") / f"bench-kv-{os.getpid()}"
        arena = Arena.create(arena_path, shape.num_blocks * shape.num_layers, shape.page_bytes)
        arena.pages.reshape(-1)[::4096] = 0
        try:
            bench = _Bench(shape, arena, args)
            peer = bench.peer(Path(folder) / "far") if args.connections else {}
            return {"peer": peer, "disk": bench.disk(Path(folder) / "near") if args.depths else {}}
        finally:
            arena_path.unlink()


class _Bench:
    def __init__(self, shape: Shape, arena: Arena, args: argparse.Namespace) -> None:
        self._shape = shape
        self._arena = arena
        self._args = args
        self._batches = shape.batches()
        self._reports: queue.SimpleQueue[list[list[LoadOutcome]]] = queue.SimpleQueue()

    def peer(self, folder: Path) -> dict[str, dict[str, float]]:
        """From another process."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        far = context.Process(target=_serve, args=(theirs, folder, self._shape, self._args.pace_mb))
        far.start()
        address = ours.recv()
        choices: dict[str, tuple[int, ...]] = {"found": CLIENT_CONNECTIONS}
        choices |= {str(num): (num,) for num in numbers("connections", self._args.connections)}
        clients = {
            name: PeerClient(
                address, Identity("near", SECRET), {self._shape.page_bytes: self._arena},
                lambda results, _: self._reports.put([each.outcomes for each in results]), _fail,
                limits=ClientLimits(connections=levels),
            )
            for name, levels in choices.items()
        }  # fmt: skip

        def cpu() -> Cpu:
            ours.send(None)
            return _cpu_s(), ours.recv()

        try:
            found = self._measure(
                {name: partial(_fetch, client) for name, client in clients.items()},
                lambda: None,
                cpu,
            )
            num = clients["found"]._fetches.connections.level
        finally:
            for client in clients.values():
                client.stop()
            ours.close()
            far.join(PATIENCE_S)
        found["found"]["connections"] = num
        return found

    def disk(self, folder: Path) -> dict[str, dict[str, float]]:
        """Cold."""
        folder.mkdir()
        disk = self._shape.store(folder)
        loaders = {}
        for name in ["found", *map(str, numbers("depths", self._args.depths))]:
            loaders[name] = loader = Loader(
                disk, {self._shape.page_bytes: self._arena},
                ThreadExecutor("kv-loader", NUM_THREADS, _fail), SystemClock(),
                lambda results, _: self._reports.put([outcomes for _, outcomes in results]), _fail,
            )  # fmt: skip
            if name != "found":
                loader.depth = Concurrency([int(name)], int(name))

        def drop() -> None:
            for path in folder.glob(f"*{SUFFIX}"):  # the index stays mapped
                if not drop_cached(path):
                    print("the kernel keeps some of the pages in memory", file=sys.stderr)

        found = self._measure(
            {name: partial(_load, loader) for name, loader in loaders.items()},
            drop,
            lambda: (_cpu_s(), 0.0),
        )
        for loader in loaders.values():
            loader.stop()
        disk.close()
        found["found"]["depth"] = loaders["found"].depth.level
        return found

    def _measure(
        self, variants: dict[str, Submit], prepare: Callable[[], None], cpu: Callable[[], Cpu]
    ) -> dict[str, dict[str, float]]:
        for _ in range(self._args.learn):
            prepare()
            self._pass(variants["found"])
        figures: dict[str, list[tuple[float, ...]]] = {name: [] for name in variants}
        for _ in range(self._args.rounds):
            for name, submit in variants.items():
                prepare()
                before = cpu()
                took_s = self._pass(submit)
                gb = self._shape.num_bytes / 1e9
                used = [(b - a) / gb for a, b in zip(before, cpu(), strict=True)]
                figures[name].append((gb / took_s, *used))
                print(name, f"{gb / took_s:.2f} GB/s", file=sys.stderr, flush=True)
        names = ("gb_per_s", "receiver_cpu_s_per_gb", "sender_cpu_s_per_gb")
        return {
            name: {
                key: round(statistics.median(column), 3)
                for key, column in zip(names, zip(*rows, strict=True), strict=True)
            }
            for name, rows in figures.items()
        }

    def _pass(self, submit: Submit) -> float:
        """Everything once, two batches at a time; how long it took, s."""
        self._arena.words[:] = 1 << 8 | PageState.FILLING
        began_s = time.perf_counter()
        for at in range(len(self._batches) + 2):
            if at >= 2:
                for outcomes in self._reports.get(timeout=PATIENCE_S):
                    assert set(outcomes) == {LoadOutcome.READY}, "every page came"
            if at < len(self._batches):
                submit(self._batches[at])
        return time.perf_counter() - began_s


def _serve(pipe: Connection, folder: Path, shape: Shape, pace_mb: float) -> None:
    """In its process: until the pipe is closed. Each message is answered by the CPU time."""
    folder.mkdir()
    disk = shape.store(folder)
    server = PeerServer(("127.0.0.1", 0), Identity("far", SECRET), DiskSource(disk, _fail), _fail)
    if pace_mb:
        pace = int(pace_mb * 1e6)
        server._listener.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, pace)
    pipe.send(server.address)
    try:
        while True:
            pipe.recv()
            pipe.send(_cpu_s())
    except EOFError:
        server.stop()
        disk.close()


def _fetch(client: PeerClient, reads: list[PageReads]) -> None:
    client.submit(reads, PATIENCE_S)


def _load(loader: Loader, reads: list[PageReads]) -> None:
    loader.submit(ReadPages(reads))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _fail(error: BaseException) -> None:
    print(f"failed: {error!r}", file=sys.stderr)
    os._exit(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="symphony bench kv",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--blocks", type=int, default=64)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--page-kib", type=float, default=256)
    parser.add_argument("--connections", default="1,2,4", help="empty: nothing from a peer")
    parser.add_argument(
        "--pace-mb", type=float, default=0, help="MB/s of a connection; 0: no limit"
    )
    parser.add_argument("--depths", default="1,2,4,8,16,32", help="empty: nothing from a disk")
    parser.add_argument("--folder", help="on the disk to measure; default: for temporary files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--learn", type=int, default=10, help="passes before the first round")
    return parser
