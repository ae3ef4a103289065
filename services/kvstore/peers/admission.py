"""Which connections may fetch pages: one thread takes all and hands on those whose hosts have
proven that they know the secret. Nothing waits for a stranger: no thread, no call that blocks, and
no host that has less open than it.
"""

import errno
import logging
import resource
import selectors
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from services.kvstore.peers.handshake import Welcome
from services.kvstore.peers.peer_limits import Identity, ServerLimits
from services.kvstore.peers.serving import ServerCounts
from services.kvstore.peers.stream import Stream, as_stream, drop_unsent
from services.kvstore.peers.unproven import Unproven, group_of
from services.kvstore.peers.wire import WireError

log = logging.getLogger(__name__)

ACCEPTS_MAX = 64  # before those that were accepted are looked at again
ACCEPT_AGAIN_S = 0.2  # after no connection could be taken, and none was closed for it
LOG_EVERY_S = 1.0  # a stranger must not write the log full
_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
UNPROVEN_MAX = 256
FILES_SHARE = 4  # one part of so many of the files that the process may open is for strangers

Admit = Callable[[Stream, str, str], None]


@dataclass(slots=True, eq=False)
class _Connection:
    """Attributes:
    until_s: by when it has to be proven, `time.monotonic`.
    is_open: what has to come before all bytes has: TLS' handshake.
    """

    sock: socket.socket
    address: str
    group: str
    welcome: Welcome
    until_s: float
    is_open: bool


class Admission:
    """Args:
    listener: which is closed by its owner. Once `stopping` is set and it is shut down, `run` ends.
    identity: of this host.
    admit: called in the thread of `run` with a stream, and with the id and the address of the host
        that has proven itself.
    counts: of connections that are refused or turned away.
    """

    def __init__(
        self,
        listener: socket.socket,
        identity: Identity,
        admit: Admit,
        counts: ServerCounts,
        stopping: threading.Event,
        limits: ServerLimits,
    ) -> None:
        self._listener = listener
        self._identity = identity
        self._admit = admit
        self._counts = counts
        self._stopping = stopping
        self._limits = limits
        self._unproven = Unproven[_Connection](limits.unproven_max or _unproven_max())
        self._num_unlogged = 0
        self._log_from_s = 0.0
        listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    @property
    def num_connections(self) -> int:
        """Those that have not proven themselves."""
        return len(self._unproven)

    def run(self) -> None:
        """Until it is stopped."""
        try:
            while not self._stopping.is_set():
                ready = [key.data for key, _ in self._selector.select(self._wait_s())]
                for connection in in_turn([each for each in ready if each is not None]):
                    self._go_on(connection)
                if None in ready:
                    self._accept_some()
                self._end_late()
        finally:
            for connection in self._unproven.all:
                self._close(connection)
            self._selector.close()

    def _wait_s(self) -> float | None:
        oldest = self._unproven.oldest
        return None if oldest is None else max(oldest.until_s - time.monotonic(), 0.0)

    def _end_late(self) -> None:
        while (oldest := self._unproven.oldest) is not None and oldest.until_s <= time.monotonic():
            self._close(oldest)

    def _accept_some(self) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if self._stopping.is_set():
                    return
                if error.errno in _NO_ROOM and not self._make_room():
                    self._log("no peer can connect", error)
                    self._stopping.wait(ACCEPT_AGAIN_S)
                    return
                continue
            self._take_in(sock, str(address[0]))
            self._counts.add("num_accepted")

    def _make_room(self) -> bool:
        """Whether a connection was closed for the next one: the process has as many files open as
        it may.
        """
        if (lost := self._unproven.take()) is not None:
            self._turn_away(lost)
        return lost is not None

    def _take_in(self, sock: socket.socket, address: str) -> None:
        identity, tls = self._identity, self._identity.tls
        sock.setblocking(False)
        try:
            if tls is not None:
                sock = tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except (OSError, ValueError):
            sock.close()
            return
        connection = _Connection(
            sock, address, group_of(address), Welcome(identity.secret, identity.host_id),
            time.monotonic() + self._limits.handshake_s, tls is None,
        )  # fmt: skip
        if (lost := self._unproven.add(connection, connection.group)) is not None:
            self._turn_away(lost)
        self._selector.register(sock, selectors.EVENT_READ, connection)
        self._go_on(connection)  # its hello may be here

    def _go_on(self, connection: _Connection) -> None:
        """With its handshake, as far as it goes without waiting."""
        if connection not in self._unproven:
            return
        try:
            is_over = self._proceed(connection)
        except WireError as error:
            self._counts.add("num_refused")
            self._log("a peer is refused", error, connection.address)
            self._close(connection)
        except (OSError, ValueError):  # it has gone, or its TLS is none
            self._close(connection)
        else:
            if is_over:
                self._hand_over(connection)

    def _proceed(self, connection: _Connection) -> bool:
        """Whether the handshake is over.

        Raises:
            WireError: it is no host of this deployment.
            OSError, ValueError: the connection is of no use.
        """
        sock, welcome = connection.sock, connection.welcome
        try:
            if not connection.is_open:
                assert isinstance(sock, ssl.SSLSocket), "others are open"
                self._selector.modify(sock, selectors.EVENT_READ, connection)
                sock.do_handshake()
                connection.is_open = True
            while welcome.num_wanted:
                if not (data := sock.recv(welcome.num_wanted)):
                    raise ConnectionResetError("closed by the other side")
                if (answer := welcome.receive(data)) and sock.send(answer) < len(answer):
                    raise ConnectionResetError("the other side takes nothing")
                if welcome.is_greeted:
                    self._unproven.hear(connection)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except ssl.SSLWantWriteError:
            self._selector.modify(sock, selectors.EVENT_WRITE, connection)
            return False
        return True

    def _hand_over(self, connection: _Connection) -> None:
        self._unproven.remove(connection)
        self._selector.unregister(connection.sock)
        host_id = connection.welcome.client_id
        assert host_id is not None, "the handshake is over"
        try:
            stream = as_stream(connection.sock, self._limits.tick_s)
        except OSError:
            connection.sock.close()
            return
        self._admit(stream, host_id, connection.address)

    def _turn_away(self, connection: _Connection) -> None:
        """It has lost its place."""
        self._counts.add("num_turned_away")
        self._release(connection)

    def _close(self, connection: _Connection) -> None:
        self._unproven.remove(connection)
        self._release(connection)

    def _release(self, connection: _Connection) -> None:
        self._selector.unregister(connection.sock)
        drop_unsent(connection.sock)
        connection.sock.close()

    def _log(self, message: str, error: Exception, address: str = "") -> None:
        now_s = time.monotonic()
        if now_s < self._log_from_s:
            self._num_unlogged += 1
            return
        extra = {"address": address, "error": str(error), "num_unlogged": self._num_unlogged}
        log.warning(message, extra=extra)
        self._log_from_s, self._num_unlogged = now_s + LOG_EVERY_S, 0


def in_turn(ready: list[_Connection]) -> list[_Connection]:
    """One of each address, then a second of each that has one, and so on."""
    num_before: Counter[str] = Counter()
    ranks: list[int] = []
    for connection in ready:
        ranks.append(num_before[connection.group])
        num_before[connection.group] += 1
    order = sorted(range(len(ready)), key=ranks.__getitem__)
    return [ready[at] for at in order]


def _unproven_max() -> int:
    """Without taking too many of the files that the process may open."""
    num_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if num_files == resource.RLIM_INFINITY:
        return UNPROVEN_MAX
    return max(min(UNPROVEN_MAX, num_files // FILES_SHARE), 1)
