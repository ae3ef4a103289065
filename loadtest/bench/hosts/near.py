"""The host that fetches the pages, for `symphony bench hosts`: ``python -m
loadtest.bench.hosts.near``. Prints gigabytes a second by name, one line of JSON.
"""

import json
import os
import queue
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from loadtest.bench.hosts.far import SECRET
from loadtest.bench.hosts.shape import Shape
from services.kvstore.core import LoadOutcome, ReadPages
from services.kvstore.peers.client import PeerClient
from services.kvstore.peers.fetches import PeerRead
from services.kvstore.peers.limits import ClientLimits, Identity
from services.kvstore.tiers.disk import Disk
from services.kvstore.tiers.disk.loader import NUM_THREADS, Loader, LoadResults
from services.kvstore.tiers.executors import ThreadExecutor
from services.kvstore.tiers.memory.filling import Filling
from shared.arena import Arena, Bytes, PageState
from shared.clock import SystemClock
from shared.urgency import DEMAND_PRIORITY

PATIENCE_S = 600.0


class Near:
    """An arena with room for everything, and the ways by which pages come into it."""

    def __init__(self, folder: Path, arena_path: Path, shape: Shape) -> None:
        self._shape = shape
        self._orders = shape.orders()
        self._pages: Bytes = shape.pages()
        self._disk: Disk = shape.store(folder, self._pages)
        self._arena = Arena.create(arena_path, shape.num_pages, shape.page_bytes)
        self._arena.pages.reshape(-1)[::4096] = 0

    def close(self) -> None:
        self._disk.close()
        self._arena.path.unlink()
        self._arena.close()

    def memcpy(self) -> None:
        """Page by page, in one thread."""
        for page, out in zip(self._pages, self._arena.pages, strict=True):
            np.copyto(out, page)

    def raw_tcp(self, address: tuple[str, int]) -> None:
        """Whole pages, each with one call, and nothing looked at."""
        with socket.create_connection(address) as sock:
            for page in self._arena.pages:
                view = memoryview(page)
                while view:
                    num_bytes = sock.recv_into(view, 0, socket.MSG_WAITALL)
                    assert num_bytes, "the far host has gone"
                    view = view[num_bytes:]

    def disk(self) -> None:
        """By the kvstore's loader: copied and checked."""
        reports: queue.SimpleQueue[LoadResults] = queue.SimpleQueue()
        arenas = {self._shape.page_bytes: self._arena}
        loader = Loader(
            self._disk, arenas, ThreadExecutor("loader", NUM_THREADS, _give_up), SystemClock(),
            lambda results, _: reports.put(results), _give_up,
        )  # fmt: skip
        for order in self._orders:
            loader.submit(ReadPages(order))
        for _ in self._orders:
            for _, outcomes in reports.get(timeout=PATIENCE_S):
                _check(outcomes)
        loader.stop()

    def peer(self, address: tuple[str, int]) -> None:
        """By the kvstores' own protocol: received in place and checked."""
        reports: queue.SimpleQueue[list[PeerRead]] = queue.SimpleQueue()
        client = PeerClient(
            address, Identity("near", SECRET), {self._shape.page_bytes: self._arena},
            lambda results, _: reports.put(results), _give_up,
            limits=ClientLimits(orders_max=len(self._orders)),
        )  # fmt: skip
        for order in self._orders:
            client.submit(order, DEMAND_PRIORITY, PATIENCE_S)
        for _ in self._orders:
            for read in reports.get(timeout=PATIENCE_S):
                _check(read.outcomes)
        client.stop()

    def fill(self) -> float:
        """Memory comes behind the pages of a new arena, as a kvstore has it; GB/s."""
        path = self._arena.path.with_name("filled")
        arena = Arena.create(path, self._shape.num_pages, self._shape.page_bytes, num_reserved=0)
        began_s = time.perf_counter()
        filling = Filling(arena, 0, lambda num_pages: None)
        filling.join()
        took_s = time.perf_counter() - began_s
        assert filling.num_ready == arena.num_pages, "there is memory for it"
        path.unlink()
        arena.close()
        return self._shape.num_bytes / took_s / 1e9

    def gb_per_s(self, way: Callable[[], None]) -> float:
        """How fast that was, for all pages, which are there then."""
        self._arena.pages.reshape(-1)[::4096] = 0
        self._arena.words[:] = 1 << 8 | PageState.FILLING
        began_s = time.perf_counter()
        way()
        took_s = time.perf_counter() - began_s
        at = self._shape.num_pages // 2
        assert self._is_there(at) and self._is_there(0), "the bytes are those that were sent"
        return self._shape.num_bytes / took_s / 1e9

    def _is_there(self, page: int) -> bool:
        """Whether some way's order has put page `page` of the arena where it belongs."""
        layer, number = divmod(page, self._shape.num_blocks)
        in_order = self._pages[number * self._shape.num_layers + layer]
        found = self._arena.pages[page]
        return bool((found == in_order).all() or (found == self._pages[page]).all())


def main() -> None:
    """Arguments: JSON of ``folder``, ``arena``, ``host``, ``ports`` by name, ``rounds``, and the
    three of `Shape`.
    """
    told = json.loads(sys.argv[1])
    shape = Shape(told["num_blocks"], told["num_layers"], told["page_bytes"])
    near = Near(Path(told["folder"]), Path(told["arena"]), shape)
    host, ports = told["host"], told["ports"]
    ways: dict[str, Callable[[], None]] = {
        "memcpy": near.memcpy,
        "disk": near.disk,
        "raw_tcp": lambda: near.raw_tcp((host, ports["raw"])),
        "peer": lambda: near.peer((host, ports["peer"])),
    }
    speeds: dict[str, list[float]] = {name: [] for name in [*ways, "fill"]}
    for _ in range(1 + told["rounds"]):  # the first warms up
        for name, way in ways.items():
            speeds[name].append(near.gb_per_s(way))
        speeds["fill"].append(near.fill())
    near.close()
    print(json.dumps({name: statistics.median(each[1:]) for name, each in speeds.items()}))


def _check(outcomes: list[LoadOutcome]) -> None:
    assert set(outcomes) == {LoadOutcome.READY}, "every page came"


def _give_up(error: BaseException) -> None:
    print(f"the near host failed: {error}", file=sys.stderr)
    os._exit(1)


if __name__ == "__main__":
    main()
