"""Sends this host's pages to the kvstores of others: one thread accepts, each connection has its
own, so that a slow peer holds up nobody else.
"""

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from services.kvstore.peers.handshake import welcome
from services.kvstore.peers.pace import Pace
from services.kvstore.peers.serving import ServerCounts, Serving
from services.kvstore.peers.sources import PageSource
from services.kvstore.peers.stream import TICK_S, Broken, Stream, open_stream
from services.kvstore.peers.wire import WireError

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 64
UNPROVEN_MAX = 8
HANDSHAKE_S = 3.0
IDLE_S = 300.0
STALL_S = 5.0
ACCEPT_AGAIN_S = 0.2


class PeerServer:
    """Listens from the moment it is made until `stop`.

    Args:
        listen: host and port; port 0 takes a free one.
        secret: the house's.
        host_id: of this host.
        fail: called with what ended the thread that accepts.
        tls: of the server's side; None: plain TCP.
        bytes_per_s: what all peers together may take; None: no limit.
        connections_max: at a time.
        unproven_max: of those, that have not shown yet that they know the secret. One more costs
            the oldest of them its place: who knows it needs no time to show it, so that those who
            do not keep nobody out by saying nothing.

    Attributes:
        address: host and port where it listens.

    Raises, when made:
        OSError: it cannot listen there.
    """

    def __init__(
        self,
        listen: tuple[str, int],
        secret: bytes,
        source: PageSource,
        fail: Callable[[BaseException], None],
        *,
        host_id: str,
        tls: ssl.SSLContext | None = None,
        bytes_per_s: float | None = None,
        connections_max: int = CONNECTIONS_MAX,
        unproven_max: int = UNPROVEN_MAX,
        handshake_s: float = HANDSHAKE_S,
        idle_s: float = IDLE_S,
        stall_s: float = STALL_S,
        tick_s: float = TICK_S,
    ) -> None:
        assert secret, "without a secret anybody is a peer"
        self._secret = secret
        self._source = source
        self._fail = fail
        self._host_id = host_id
        self._tls = tls
        self._pace = Pace(bytes_per_s)
        self._connections_max = connections_max
        self._unproven_max = unproven_max
        self._handshake_s = handshake_s
        self._idle_s = idle_s
        self._stall_s = stall_s
        self._tick_s = tick_s
        self.counts = ServerCounts()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._connections: dict[threading.Thread, Stream] = {}
        self._unproven: dict[threading.Thread, Stream] = {}  # the oldest first
        family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
        self._listener = socket.create_server(listen, family=family, backlog=unproven_max)
        host, port = self._listener.getsockname()[:2]
        self.address: tuple[str, int] = (host, port)
        self._thread = threading.Thread(target=self._accept_all, name="kv-peers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Cut all connections and end."""
        self._stopping.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # the one who accepts wakes up
        self._thread.join()
        self._listener.close()
        with self._lock:
            threads = list(self._connections)
            for stream in self._connections.values():
                stream.abort()
        for thread in threads:
            thread.join()

    @property
    def num_connections(self) -> int:
        """Those that are open."""
        return len(self._connections)

    def _accept_all(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    sock, address = self._listener.accept()
                except OSError as error:
                    if not self._stopping.is_set():  # no file descriptors, say
                        log.warning("no peer can connect", extra={"error": str(error)})
                        self._stopping.wait(ACCEPT_AGAIN_S)
                    continue
                self._take_in(sock, str(address[0]))
        except Exception as error:
            self._fail(error)

    def _take_in(self, sock: socket.socket, address: str) -> None:
        try:
            stream = open_stream(sock, self._tls, self._tick_s)
        except Broken as error:
            log.info("a peer has gone", extra={"address": address, "error": str(error)})
            return
        thread = threading.Thread(
            target=self._serve, args=(stream, address), name="kv-peer", daemon=True
        )
        with self._lock:
            is_full = len(self._connections) >= self._connections_max
            if has_room := not is_full and not self._stopping.is_set():
                if len(self._unproven) >= self._unproven_max:
                    self._turn_away_oldest()
                self._connections[thread] = self._unproven[thread] = stream
        if not has_room:
            self.counts.add("num_turned_away")
            stream.close()
            return
        thread.start()

    def _turn_away_oldest(self) -> None:
        """Of those that have shown nothing; its thread ends soon."""
        self.counts.add("num_turned_away")
        self._unproven.pop(next(iter(self._unproven))).abort()

    def _serve(self, stream: Stream, address: str) -> None:
        me = threading.current_thread()
        try:
            welcome(stream, self._secret, self._host_id, time.monotonic() + self._handshake_s)
            with self._lock:
                self._unproven.pop(me, None)
            Serving(
                stream, self._source, self._pace, self.counts, self._stopping, self._idle_s,
                self._stall_s,
            ).run()  # fmt: skip
        except WireError as error:
            self.counts.add("num_refused")
            log.warning("a peer is refused", extra={"address": address, "error": str(error)})
        except Broken as error:
            log.info("a peer has gone", extra={"address": address, "error": str(error)})
        except Exception as error:
            self._fail(error)
        finally:
            with self._lock:
                self._connections.pop(me, None)
                self._unproven.pop(me, None)
            stream.close()
