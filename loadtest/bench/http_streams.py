"""What a streamed token costs each process, sockets and all, for `symphony bench http`.

Processor time, as the kernel counts it, while so many chats are streamed that `NUM_WORKERS` workers
write; those are emulated, with steps of `STEP_MS`, and a message has a token of all their turns.
"""

import asyncio
import os
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson

from cli.base.runfile import running_deployment
from loadtest.http_load import END_OF_CHUNKS
from loadtest.raw_http import request_bytes
from shared.errors import PeerUnavailable

NUM_WORKERS = 4
STEP_MS = 40.0
TOKENS_PER_S = 1e3 / STEP_MS
MODEL = "steady"
PROFILE = {
    "name": MODEL, "base_ms": STEP_MS, "prefill_ms_per_token": 0.0, "decode_ms_per_turn": 0.0,
    "num_layers": 2, "kv_bytes_per_token": 64, "max_model_len": 8192, "num_kv_tokens": 2_000_000,
}  # fmt: skip
PATH = "/v1/chat/completions"
END_OF_EVENT = b"\n\n"
SETTLE_S = 3.0
PATIENCE_S = 30.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def write_profile(folder: Path) -> Path:
    """What `up --emulate` is given."""
    file = folder / "steady.json"
    file.write_bytes(orjson.dumps(PROFILE))
    return file


async def measure(port: int, data_dir: Path, num_streams: int, seconds: float) -> dict[str, Any]:
    """Of the deployment on this port and data folder: tokens a second, microseconds of a token by
    process, and how many streams of `TOKENS_PER_S` that is on one core of a frontend's.

    Raises:
        PeerUnavailable: a stream was refused, or none came in time.
    """
    async with AsyncExitStack() as stack:
        streams = [await _Stream.open(port, stack) for _ in range(num_streams)]
        async with asyncio.timeout(PATIENCE_S):
            while not all(stream.num_events for stream in streams):
                if any(stream.is_over for stream in streams):
                    raise PeerUnavailable("a stream ended before it began")
                await asyncio.sleep(0.05)
        await asyncio.sleep(SETTLE_S)
        pids = {service.name: service.pid for service in running_deployment(data_dir).services}
        began_s = {name: _cpu_s(pid) for name, pid in pids.items()}
        began_at_s, num_before = time.perf_counter(), _num_events(streams)
        await asyncio.sleep(seconds)
        took_s = {name: _cpu_s(pid) - began_s[name] for name, pid in pids.items()}
        num_tokens, lasted_s = _num_events(streams) - num_before, time.perf_counter() - began_at_s
        if any(stream.is_over for stream in streams):
            raise PeerUnavailable("a stream ended while it was measured: use fewer seconds")
    return figures(took_s, num_streams, num_tokens, lasted_s)


def figures(
    took_s: dict[str, float], num_streams: int, num_tokens: int, lasted_s: float
) -> dict[str, Any]:
    """What `measure` returns.

    Args:
        took_s: processor time by process.
    """
    token_us = {name: round(1e6 * each_s / num_tokens, 1) for name, each_s in took_s.items()}
    return {
        "streams": num_streams,
        "tokens_per_s": round(num_tokens / lasted_s),
        "token_us": token_us,
        f"streams_at_{TOKENS_PER_S:g}_per_s": round(1e6 / TOKENS_PER_S / token_us["frontend"]),
    }


def _num_events(streams: list["_Stream"]) -> int:
    return sum(stream.num_events for stream in streams)


class _Stream(asyncio.Protocol):
    """A chat that is streamed, of which nothing is kept.

    Attributes:
        num_events: that came.
        is_over: it is, or was refused.
    """

    def __init__(self) -> None:
        self.num_events = 0
        self.is_over = False
        self._last = b""

    @classmethod
    async def open(cls, port: int, stack: AsyncExitStack) -> "_Stream":
        loop = asyncio.get_running_loop()
        transport, stream = await loop.create_connection(cls, "127.0.0.1", port)
        stack.callback(transport.abort)
        message = {"role": "user", "content": "How are you today?"}
        body = {
            "model": MODEL, "messages": [message], "max_tokens": 8000, "ignore_eos": True,
            "stream": True,
        }  # fmt: skip
        transport.write(request_bytes("POST", PATH, port, orjson.dumps(body)))
        return stream

    def data_received(self, data: bytes) -> None:
        if not self.num_events and not self._last:
            self.is_over = not data.startswith(b"HTTP/1.1 200 ")
        self.is_over = self.is_over or data.endswith(END_OF_CHUNKS)
        self.num_events += (self._last + data).count(END_OF_EVENT)
        self._last = data[-1:] if not data.endswith(END_OF_EVENT) else b"."

    def connection_lost(self, _: Exception | None) -> None:
        self.is_over = True


def _cpu_s(pid: int) -> float:
    """Processor seconds that a process and its threads have used so far.

    Raises:
        OSError: there is no such process.
    """
    # The name, in brackets, may hold anything: fields are counted from its end.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S
