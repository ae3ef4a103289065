"""The Unix socket between a worker and its vLLM's processes: who listens, and who connects.

A connection lasts as long as both processes. A message is its length, 4 bytes, and its JSON.
"""

import asyncio
import logging
import os
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from services.worker.core.vllm.messages import SCHEDULER, FromConnector, Registered, ToConnector
from shared.errors import ConfigError, MalformedMessage
from shared.wire.messages import decode, encode

log = logging.getLogger(__name__)

LENGTH = struct.Struct("<I")
TO_CONNECTOR: Any = ToConnector  # what `decode` reads is a type, or several
FROM_CONNECTOR: Any = FromConnector
MESSAGE_BYTES_MAX = 1 << 28  # a ticket of a million tokens
REGISTER_PATIENCE_S = 60.0
REGISTER_S = 5.0  # in which a connector says who it is, once it is connected
SOCKET_NAME = "kv"
# Of the connectors' extra configuration: the path; and whether a worker of ours runs this engine,
# whose requests' parameters are its own words. Without it they are those of HTTP clients.
SOCKET, IS_WORKERS = "socket", "is_workers"


def frame(message: object) -> bytes:
    """A message as it travels."""
    data = encode(message)
    return LENGTH.pack(len(data)) + data


def _length(head: bytes) -> int:
    (length,) = LENGTH.unpack(head)
    if length > MESSAGE_BYTES_MAX:
        raise MalformedMessage(f"a message of {length} bytes")
    return int(length)


class Connection:
    """A connector's end. Messages are sent and received by threads of its own, in order.

    Args:
        on_message: called by the receiving thread.
        on_closed: called by it when the worker is gone.
    """

    def __init__(
        self,
        path: str,
        on_message: Callable[[ToConnector], None],
        on_closed: Callable[[], None],
    ) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._on_message, self._on_closed = on_message, on_closed
        self._unsent: SimpleQueue[object] = SimpleQueue()  # None ends it
        for name, run in (("kv-send", self._send_all), ("kv-receive", self._receive_all)):
            threading.Thread(target=run, name=name, daemon=True).start()

    def send(self, message: FromConnector) -> None:
        """Send a message, soon; never waits."""
        self._unsent.put(message)

    def close(self) -> None:
        """End the connection."""
        with suppress(OSError):  # the worker was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    def _send_all(self) -> None:
        with suppress(OSError):  # the receiving thread says so
            while (message := self._unsent.get()) is not None:
                self._socket.sendall(frame(message))

    def _receive_all(self) -> None:
        try:
            with self._socket.makefile("rb") as stream:
                while len(head := stream.read(LENGTH.size)) == LENGTH.size:
                    message: Any = decode(TO_CONNECTOR, stream.read(_length(head)))
                    self._on_message(message)
        except OSError:
            pass
        except Exception:
            log.exception("a message of the worker was not understood: KV stays in vLLM")
        finally:
            self._unsent.put(None)
            self._socket.close()
            self._on_closed()


class Peer:
    """A worker's end of the connection to one connector.

    Attributes:
        registered: what it said first.
    """

    def __init__(self, connection: socket.socket, registered: Registered) -> None:
        self.registered = registered
        self._socket = connection
        self._writer: asyncio.StreamWriter | None = None
        self._unsent: list[object] = []

    @property
    def rank(self) -> int:
        return self.registered.rank

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended, as far as nothing of it waits to be read."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def send(self, message: ToConnector) -> None:
        """Send a message, soon."""
        if self._writer is None:
            self._unsent.append(message)
        else:
            self._writer.write(frame(message))

    def close(self) -> None:
        """End a connection that nothing reads."""
        self._socket.close()

    async def read(self, on_message: Callable[["Peer", FromConnector], None]) -> None:
        """Pass messages on until the connector is gone.

        Raises:
            MalformedMessage: what it sends is none.
        """
        reader, self._writer = await asyncio.open_connection(sock=self._socket)
        try:
            for message in self._unsent:
                self._writer.write(frame(message))
            self._unsent.clear()
            while True:
                head = await reader.readexactly(LENGTH.size)
                received: Any = decode(FROM_CONNECTOR, await reader.readexactly(_length(head)))
                on_message(self, received)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._writer.close()


def flaw_of(peers: Sequence[Peer]) -> str:
    """Why nothing of these caches can be kept; empty: it can."""
    return next((peer.registered.error for peer in peers if peer.registered.error), "")


def useful(peers: list[Peer]) -> list[Peer]:
    """These, if anything of their caches can be kept; else none, and they are closed."""
    if not (flaw := flaw_of(peers)):
        return peers
    log.warning("KV stays in vLLM's own cache", extra={"because_of": flaw})
    for peer in peers:
        peer.close()
    return []


class Listener:
    """Where a vLLM's connectors find the worker, while its engine starts.

    Args:
        path: of the socket; None: in a folder of its own, that only this user can enter.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if path is None:
            self._folder = tempfile.TemporaryDirectory(prefix="symphony-vllm-")
            path = Path(self._folder.name) / SOCKET_NAME
        self.path = str(path)
        self._peers: dict[int, Peer] = {}
        self._socket = socket.socket(socket.AF_UNIX)
        path.unlink(missing_ok=True)
        self._socket.bind(self.path)
        path.chmod(0o600)
        self._socket.listen(os.cpu_count() or 1)

    def accept(self, within_s: float = REGISTER_PATIENCE_S) -> list[Peer]:
        """The connectors of the scheduler and of each rank, in this order (waits for them). They
        may say that nothing of their caches can be kept: see `flaw_of`.

        Those that came in time are kept for the next call: between a rank's and the scheduler's
        vLLM may compile for minutes.

        Raises:
            ConfigError: one has not come in time, or was no connector.
        """
        deadline = time.monotonic() + within_s
        while not self._are_all_here:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                connection, _ = self._socket.accept()
                connection.settimeout(REGISTER_S)
                self._take(connection)
            except (OSError, MalformedMessage) as error:
                came = f"{len(self._peers)} of {self._num_ranks + 1} came"
                raise ConfigError(f"vLLM's KV connectors: {came}: {error}") from error
        peers = [self._peers[rank] for rank in sorted(self._peers)]
        self._peers = {}
        return peers

    def _take(self, connection: socket.socket) -> None:
        try:
            registered = decode(Registered, _read(connection))
        except BaseException:
            connection.close()
            raise
        connection.setblocking(False)
        # Of a vLLM that ended while it started, whose ranks were others perhaps.
        gone = [rank for rank, peer in self._peers.items() if peer.is_gone]
        for rank in [*gone, registered.rank]:
            if (old := self._peers.pop(rank, None)) is not None:
                old.close()
        self._peers[registered.rank] = Peer(connection, registered)

    @property
    def _num_ranks(self) -> int:
        return max((peer.registered.num_ranks for peer in self._peers.values()), default=1)

    @property
    def _are_all_here(self) -> bool:
        return self._peers.keys() == {SCHEDULER, *range(self._num_ranks)}

    def close(self) -> None:
        """Take no more connections, and end those that wait for others."""
        for peer in self._peers.values():
            peer.close()
        self._peers = {}
        self._socket.close()
        Path(self.path).unlink(missing_ok=True)
        if self._folder is not None:
            self._folder.cleanup()


def _read(connection: socket.socket) -> bytes:
    head = _exactly(connection, LENGTH.size)
    return _exactly(connection, _length(head))


def _exactly(connection: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        more = connection.recv(num_bytes - len(data))
        if not more:
            raise MalformedMessage("the connection ended")
        data += more
    return data
