"""``python -m loadtest.bench.flood.sender``: sends spurious advisories at a rate, whatever becomes
of earlier ones, and prints one line of JSON about it.
"""

import argparse
import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import nats
import orjson
import uvloop
from nats.aio.msg import Msg

from loadtest.fuzz.plain_http import request_bytes
from shared.bus.connection import ERROR_HEADER
from shared.subjects import ADVISORY_SUBMIT

TICK_S = 0.005
LINGER_S = 0.5  # for answers to the last ones
STATUS = re.compile(rb"HTTP/1\.1 (\d\d\d)")
STATUS_BYTES = 12
UNSENT_BYTES_MAX = 65_536


class Tally:
    """Answers, counted."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self.first_throttled_s: float | None = None
        self.begun_at = time.perf_counter()

    def count(self, answer: str, *, is_throttled: bool) -> None:
        """One more."""
        self.answers[answer] += 1
        if is_throttled and self.first_throttled_s is None:
            self.first_throttled_s = round(time.perf_counter() - self.begun_at, 3)


class _Connection(asyncio.Protocol):
    """Requests behind one another, without waiting."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._rest = b""
        self.is_open = self.has_room = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(UNSENT_BYTES_MAX)

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def abort(self) -> None:
        self._transport.abort()

    def pause_writing(self) -> None:
        self.has_room = False

    def resume_writing(self) -> None:
        self.has_room = True

    def data_received(self, data: bytes) -> None:
        text = self._rest + data
        end = 0
        for found in STATUS.finditer(text):
            end = found.end()
            status = found[1].decode()
            self._tally.count(status, is_throttled=status == "429")
        self._rest = text[max(end, len(text) - STATUS_BYTES + 1) :]

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False


class Http:
    """Over so many connections in turn."""

    def __init__(self, port: int, key: str, connections: Sequence[_Connection]) -> None:
        self._port = port
        self._header = f"Authorization: Bearer {key}".encode()
        self._connections = connections
        self._next = 0

    def send(self, session_id: str) -> bool:
        """Whether it went out, at least into the kernel's buffer."""
        for _ in self._connections:
            self._next = (self._next + 1) % len(self._connections)
            connection = self._connections[self._next]
            if connection.is_open and connection.has_room:
                body = b'{"session_id":"%b"}' % session_id.encode()
                path = "/v1/advisories"
                connection.write(request_bytes("POST", path, self._port, body, self._header))
                return True
        return False


async def _over_http(args: argparse.Namespace, tally: Tally) -> None:
    port, key, number = args.where
    loop = asyncio.get_running_loop()
    made = [
        (await loop.create_connection(lambda: _Connection(tally), "127.0.0.1", int(port)))[1]
        for _ in range(int(number))
    ]
    await _flood(args, tally, Http(int(port), key, made).send)
    for connection in made:
        connection.abort()


async def _over_nats(args: argparse.Namespace, tally: Tally) -> None:
    url, seed, tenant = args.where
    inbox = f"_INBOX.{tenant}.flood"
    client = await nats.connect(url, nkeys_seed=seed, inbox_prefix=f"_INBOX.{tenant}")

    async def on_answer(message: Msg) -> None:
        code = (message.headers or {}).get(ERROR_HEADER, "ok")
        tally.count(code, is_throttled=code == "hints_throttled")

    await client.subscribe(inbox, cb=on_answer)
    unsent: set[asyncio.Task[None]] = set()

    def send(session_id: str) -> bool:
        if client.pending_data_size > UNSENT_BYTES_MAX:
            return False
        body = b'{"session_id":"%b"}' % session_id.encode()
        task = asyncio.ensure_future(client.publish(ADVISORY_SUBMIT.pattern, body, reply=inbox))
        unsent.add(task)
        task.add_done_callback(unsent.discard)
        return True

    await _flood(args, tally, send)
    await client.close()


async def _flood(args: argparse.Namespace, tally: Tally, send: Callable[[str], bool]) -> None:
    """Send what is due, tick by tick; what cannot go out then does not go out."""
    tally.begun_at = time.perf_counter()
    num_due = num_sent = 0
    while (passed_s := time.perf_counter() - tally.begun_at) < args.seconds:
        while num_due < passed_s * args.rate:
            num_sent += send(f"{args.name}-{num_due}")
            num_due += 1
        await asyncio.sleep(TICK_S)
    await asyncio.sleep(LINGER_S)
    told = {
        "num_due": num_due,
        "num_sent": num_sent,
        "answers": tally.answers,
        "first_throttled_s": tally.first_throttled_s,
    }
    print(orjson.dumps(told).decode(), flush=True)


def main() -> None:
    """Run one flood."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--name", required=True, help="of its sessions")
    parser.add_argument("way", choices=("http", "nats"))
    parser.add_argument("where", nargs="+", help="port, key, connections; or URL, seed, tenant")
    args = parser.parse_args()
    ways: dict[str, Any] = {"http": _over_http, "nats": _over_nats}
    uvloop.run(ways[args.way](args, Tally()))


if __name__ == "__main__":
    main()
