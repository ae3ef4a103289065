"""An input to other processes, and back what they would have made of it."""

import os
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import loadtest
from services.worker.device.assist.channel import Channel, ChannelShape, Order
from services.worker.device.assist.handoff import HostHandoff, joined
from services.worker.device.assist.sharing import share_rows
from services.worker.device.assist.waiting import wait_for
from shared.errors import SymphonyError

_ROOT = Path(loadtest.__path__[0]).parent
_CHILD = Path(__file__).with_name("receiver.py")  # by its path: as a module it would import torch
WARM_UPS = 3
REPEATS = 2  # of each kind, by turns
TIMEOUT_NS = 30_000_000_000


@dataclass(frozen=True, slots=True)
class _Shapes:
    """Of what is handed over: as many columns come back, in float32."""

    num_rows: int
    num_columns: int
    dtype: torch.dtype

    @property
    def in_bytes(self) -> int:
        return self.num_rows * self.num_columns * self.dtype.itemsize

    @property
    def out_bytes(self) -> int:
        return self.num_rows * self.num_columns * 4


def measure_handoff(
    num_tokens: tuple[int, ...],
    num_receivers: tuple[int, ...],
    hidden: int,
    dtype: torch.dtype,
    rounds: int,
) -> list[dict[str, Any]]:
    """Median milliseconds there and back, by rows and receivers, who share the rows.

    Raises:
        SymphonyError: a receiver does not answer.
    """
    rows = []
    for receivers in num_receivers:
        for tokens in num_tokens:
            shapes = _Shapes(tokens, hidden, dtype)
            took: dict[str, list[float]] = defaultdict(list)
            for _ in range(REPEATS):
                for kind, hand_over in (("shm", _through_memory), ("socket", _through_sockets)):
                    with hand_over(shapes, share_rows(tokens, 1, receivers)) as once:
                        took[kind] += _times_ms(once, rounds)
            shm, over_socket = statistics.median(took["shm"]), statistics.median(took["socket"])
            rows.append({
                "tokens": tokens,
                "receivers": receivers,
                "shm": round(shm, 4),
                "socket": round(over_socket, 4),
                "socket_over_shm": round(over_socket / shm, 2),
            })  # fmt: skip
            print(f"handoff {rows[-1]}", flush=True)
    return rows


def _times_ms(once: Callable[[], None], rounds: int) -> list[float]:
    took = []
    for _ in range(WARM_UPS + rounds):
        started = time.perf_counter()
        once()
        took.append((time.perf_counter() - started) * 1e3)
    return took[WARM_UPS:]


@contextmanager
def _through_memory(shapes: _Shapes, shares: list[tuple[int, int]]) -> Iterator[Callable[[], None]]:
    shape = ChannelShape(shapes.num_rows, shapes.in_bytes, shapes.out_bytes)
    x = torch.randn(shapes.num_rows, shapes.num_columns).to(shapes.dtype)
    whole = torch.empty(x.numel())
    lines = torch.zeros(shapes.num_rows, dtype=torch.int32)
    with ExitStack() as stack:
        channels = [Channel.create(shape) for _ in shares]
        for channel in channels:
            numbers = shape.rows_max, shape.in_bytes, shape.out_bytes
            stack.enter_context(_receiver("shm", channel.file_number, *numbers))
            channel.close_file()
        handoffs = [HostHandoff(channel) for channel in channels]
        number = 0

        def once() -> None:
            nonlocal number
            number += 1
            for handoff, (first, last) in zip(handoffs, shares, strict=True):
                order = Order(0, 0, 0, last - first)
                handoff.put(number, order, x[first:last], lines[first:last])
            parts = []
            until_ns = time.monotonic_ns() + TIMEOUT_NS
            for channel, handoff, (first, last) in zip(channels, handoffs, shares, strict=True):
                is_there = partial(_has_answered, channel, number)
                if not wait_for(is_there, until_ns, channel.done):
                    raise SymphonyError("a receiver does not answer")
                parts.append(handoff.result(last - first, shapes.num_columns))
            joined(parts, whole)

        yield once


def _has_answered(channel: Channel, number: int) -> bool:
    return channel.outcome(number) is not None


@contextmanager
def _through_sockets(
    shapes: _Shapes, shares: list[tuple[int, int]]
) -> Iterator[Callable[[], None]]:
    x = torch.randn(shapes.num_rows, shapes.num_columns).to(shapes.dtype)
    out = torch.empty(x.shape, dtype=torch.float32)
    sent, given = (memoryview(each.view(torch.uint8).numpy().data) for each in (x, out))
    with ExitStack() as stack:
        sockets = []
        for first, last in shares:
            ours, theirs = socket.socketpair()
            stack.enter_context(ours)
            ours.settimeout(TIMEOUT_NS / 1e9)
            sizes = (last - first) * x[0].nbytes, (last - first) * out[0].nbytes
            with theirs:
                stack.enter_context(_receiver("socket", theirs.fileno(), *sizes))
            sockets.append(ours)

        def once() -> None:
            for each, (first, last) in zip(sockets, shares, strict=True):
                each.sendall(sent[first:last])
            for each, (first, last) in zip(sockets, shares, strict=True):
                part = given[first:last].cast("B")
                got = 0
                while got < len(part):
                    if not (num := each.recv_into(part[got:])):
                        raise SymphonyError("a receiver ended")
                    got += num

        yield once


@contextmanager
def _receiver(kind: str, file_number: int, *numbers: int) -> Iterator[None]:
    words = [kind, *map(str, (os.getpid(), file_number, *numbers))]
    process = subprocess.Popen(
        [sys.executable, "-P", str(_CHILD), *words],
        pass_fds=(file_number,),
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
    try:
        yield
    finally:
        process.kill()
        process.communicate()
