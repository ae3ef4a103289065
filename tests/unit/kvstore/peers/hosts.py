"""Two hosts in one process: disks, arenas, real sockets, and a proxy between them."""

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from services.kvstore.core import DiskWrite, LoadOutcome, PageReads
from services.kvstore.peers.client import PeerClient
from services.kvstore.peers.fetches import PeerRead
from services.kvstore.peers.handshake import Welcome, greet
from services.kvstore.peers.peer_limits import ClientLimits, Identity, ServerLimits
from services.kvstore.peers.server import PeerServer
from services.kvstore.peers.sources import DiskSource, PageSource
from services.kvstore.peers.stream import PlainStream
from services.kvstore.peers.wire import Request, read_request
from services.kvstore.tiers.disk import Disk
from shared.arena import Arena, PageState, checksum
from shared.blocks import BlockKey
from shared.owners import OwnerKey

SECRET = b"the deployment's own"
OWNER = OwnerKey(bytes(range(16)))
LONG_S = 60.0
TICK_S = 0.02
LOST = (7, PageState.BAD)
THERE = (7, PageState.READY)
PENDING = (7, PageState.FILLING)
_PATIENT = {"handshake_s": LONG_S, "stall_s": LONG_S}  # whatever machine this is


def key(number: int) -> BlockKey:
    return BlockKey(bytes([number]) * 16)


def must_not(error: BaseException) -> None:
    raise AssertionError("a thread failed") from error


class Clock:
    """Stands for `time` in a module: at first the real one; once `is_over` it is much later."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self._is_over = is_over
        self._ahead_s = 0.0

    def monotonic(self) -> float:
        if self._is_over():
            self._ahead_s = 2 * LONG_S
        return time.monotonic() + self._ahead_s


class Ticks:
    """Stands for `time` where only durations matter."""

    now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


class Sender:
    """A host that has blocks, numbered from 1 on, on disk.

    Attributes:
        pages: uint8 [blocks, layers, page_bytes]; block `number` is `pages[number - 1]`.
    """

    def __init__(self, path: Path, blocks: int, layers: int, page_bytes: int) -> None:
        random = np.random.default_rng(blocks)
        self.pages = random.integers(0, 256, (blocks, layers, page_bytes), np.uint8)
        self._path = path / f"{layers}x{page_bytes}.slab"
        self.disk = Disk(path, 2 * self.pages.nbytes + (1 << 20))
        with self.disk.write(now_s=5) as writer:
            for number in range(1, blocks + 1):
                writer.put(self.write_of(number), self.pages.reshape(-1, page_bytes))

    def value(self, number: int, layer: int) -> bytes:
        """Header and page as they are sent."""
        with DiskSource(self.disk, must_not).open() as pages:
            found = pages.find(key(number), layer, self.pages.shape[2])
            assert found is not None
            return b"".join(found.parts)

    def flip(self, number: int, layer: int, at: int) -> None:
        """Flip a bit of a stored page in its file, as damage would."""
        data = self._path.read_bytes()
        start = data.index(self.pages[number - 1, layer].tobytes())
        with self._path.open("r+b") as file:
            file.seek(start + at)
            file.write(bytes([data[start + at] ^ 1]))

    def write_of(self, number: int) -> DiskWrite:
        _, layers, page_bytes = self.pages.shape
        pages = list(range((number - 1) * layers, number * layers))
        flat = self.pages.reshape(-1, page_bytes)
        return DiskWrite(
            number, key(number), key(number - 1), [number] * 64, "f", page_bytes, pages,
            [checksum(flat[page].data) for page in pages], OWNER,
        )  # fmt: skip


class Receiver:
    """A host's arena, all of whose pages are promised under generation 7, and what was reported.

    Attributes:
        took_s: what each order took, as it was reported.
    """

    def __init__(self, path: Path, num_pages: int, page_bytes: int) -> None:
        self.arena = Arena.create(path, num_pages, page_bytes)
        self.arenas = {page_bytes: self.arena}
        self.reports: queue.SimpleQueue[list[PeerRead]] = queue.SimpleQueue()
        self.took_s: list[float] = []
        for page in range(num_pages):
            self.arena.set_word(page, *PENDING)

    def report(self, results: list[PeerRead], took_s: float) -> None:
        assert took_s >= 0
        self.took_s.append(took_s)
        self.reports.put(results)

    def reads(self, layer: int, numbers: list[int], first: int, kind: int = 0) -> PageReads:
        """This layer of these blocks, so urgent, into arena pages from `first` on."""
        pages = list(range(first, first + len(numbers)))
        keys = [key(number) for number in numbers]
        page_bytes = self.arena.page_bytes
        return PageReads(layer, page_bytes, numbers, keys, pages, [7] * len(numbers), kind)

    def outcomes(self) -> list[list[LoadOutcome]]:
        """Of the next order that is reported."""
        return [read.outcomes for read in self.reports.get(timeout=LONG_S)]


@contextmanager
def serving(source: Disk | PageSource, **options: Any) -> Iterator[PeerServer]:
    """A server of what is there."""
    if isinstance(source, Disk):
        source = DiskSource(source, must_not)
    options = {"host_id": "sender", "tick_s": TICK_S, **_PATIENT, **options}
    identity = _identity(options)
    server = PeerServer(("127.0.0.1", 0), identity, source, must_not, ServerLimits(**options))
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def fetching(address: tuple[str, int], receiver: Receiver, **options: Any) -> Iterator[PeerClient]:
    """A client of the server there."""
    options = {"host_id": "receiver", "tick_s": TICK_S, **_PATIENT, **options}
    options.setdefault("connect_s", LONG_S)
    identity, peer_id = _identity(options), options.pop("peer_id", None)
    client = PeerClient(
        address, identity, receiver.arenas, receiver.report, must_not, peer_id,
        ClientLimits(**options),
    )  # fmt: skip
    try:
        yield client
    finally:
        client.stop()


def _identity(options: dict[str, Any]) -> Identity:
    return Identity(options.pop("host_id"), options.pop("secret", SECRET), options.pop("tls", None))


class Listener:
    """Accepts on a free port and hands each connection, with its number from 0 on, to `serve` in a
    thread of its own.
    """

    def __init__(self, serve: Callable[[socket.socket, int], None]) -> None:
        self._serve = serve
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self.num_accepted = 0
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._one, args=(sock, self.num_accepted))
            self.num_accepted += 1
            self._open.append(sock)
            self._threads.append(thread)
            thread.start()

    def _one(self, sock: socket.socket, number: int) -> None:
        with suppress(OSError), sock:
            self._serve(sock, number)

    def wait_ended(self, number: int) -> None:
        """Until a connection is over."""
        self._threads[1 + number].join(LONG_S)
        assert not self._threads[1 + number].is_alive()

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (self._socket, *self._open):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._socket.close()
        for thread in self._threads[1:]:
            thread.join()
        for sock in self._open:
            sock.close()


def proxy(target: tuple[str, int], cuts: list[int], requests: list[bytes]) -> Listener:
    """Stands between a client and its server; closes each connection after as many bytes of the
    server's as `cuts` says, those after the last of them never. What clients say is noted.
    """

    def serve(client: socket.socket, number: int) -> None:
        requests.append(b"")
        left = cuts[number] if number < len(cuts) else 1 << 60
        with socket.create_connection(target) as server:
            back = threading.Thread(target=_note, args=(client, server, requests, number))
            back.start()
            while left > 0 and (data := server.recv(min(left, 1 << 16))):
                client.sendall(data)
                left -= len(data)
            for sock in (client, server):
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            back.join()

    return Listener(serve)


def _note(client: socket.socket, server: socket.socket, requests: list[bytes], number: int) -> None:
    with suppress(OSError):
        while data := client.recv(1 << 16):
            requests[number] += data
            server.sendall(data)
        server.shutdown(socket.SHUT_RDWR)


def liar(lie: Callable[[socket.socket, int], None]) -> Listener:
    """Knows the secret, and then does as `lie` says with each connection, of that number."""

    def serve(sock: socket.socket, number: int) -> None:
        sock.settimeout(LONG_S)
        welcome = Welcome(SECRET, "liar")
        while welcome.num_wanted:
            sock.sendall(welcome.receive(take(sock, welcome.num_wanted)))
        lie(sock, number)

    return Listener(serve)


def hear(sock: socket.socket) -> Request:
    """The next request on a connection."""
    raw = b""
    while (found := read_request(raw)) is None:
        data = sock.recv(1)
        if not data:
            raise OSError("the client has gone")
        raw += data
    return found[0]


def take(sock: socket.socket, num_bytes: int) -> bytes:
    """So many bytes."""
    data = b""
    while len(data) < num_bytes:  # a process that was stopped for a moment gets less
        new = sock.recv(num_bytes - len(data), socket.MSG_WAITALL)
        if not new:
            raise OSError("the other side has gone")
        data += new
    return data


def is_closed(sock: socket.socket) -> bool:
    """Whether the other side closes, in a while."""
    with suppress(ConnectionResetError):
        while sock.recv(1 << 16):
            pass
    return True


@contextmanager
def greeted(
    server: PeerServer, receive_bytes: int = 1 << 16, host_id: str = "test"
) -> Iterator[socket.socket]:
    """A connection of a host that knows the secret and then does as the test does."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.connect(server.address)
        greet(PlainStream(sock, LONG_S), SECRET, host_id, None, time.monotonic() + LONG_S)
        yield sock


def until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + LONG_S
    while not is_so():
        assert time.monotonic() < until_s, "the awaited never came"
        time.sleep(0.001)


@contextmanager
def strangers(
    server: PeerServer, num: int, say: Callable[[socket.socket], None], address: str
) -> Iterator[None]:
    """So many connect, say something, and wait; the server has seen all of them."""
    num_before = server.counts.num_accepted
    with ExitStack() as stack:
        for _ in range(num):
            sock = socket.create_connection(server.address, LONG_S, (address, 0))
            stack.enter_context(sock)
            with suppress(OSError):  # turned away before it said all
                say(sock)
        until(lambda: server.counts.num_accepted >= num_before + num)
        yield
