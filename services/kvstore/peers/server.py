"""Sends this host's pages to the kvstores of others: one thread takes connections (`admission.py`),
each that has proven itself has its own, so that a slow peer holds up no other.
"""

import logging
import resource
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from services.kvstore.peers.admission import Admission
from services.kvstore.peers.handshake import Welcome
from services.kvstore.peers.pace import Pace
from services.kvstore.peers.serving import ServerCounts, Serving
from services.kvstore.peers.sources import PageSource
from services.kvstore.peers.stream import TICK_S, Broken, Stream
from services.kvstore.peers.wire import WireError

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 64
UNPROVEN_MAX = 256
FILES_SHARE = 4  # one part of so many of the files that the process may open is for strangers
BACKLOG = 4096  # connections that the kernel accepts before we do; it may hold it to fewer
HANDSHAKE_S = 3.0
IDLE_S = 300.0
STALL_S = 5.0


@dataclass(slots=True)
class _Peer:
    """Attributes:
    is_leaving: its place is another's; its thread ends soon.
    """

    stream: Stream
    host_id: str
    is_leaving: bool = False


class PeerServer:
    """Listens from the moment it is made until `stop`.

    Args:
        listen: host and port; port 0 takes a free one.
        secret: the deployment's.
        host_id: of this host.
        fail: called with what ended one of its threads.
        tls: of the server's side; None: plain TCP.
        bytes_per_s: what all peers together may take; None: no limit.
        connections_max: of hosts that have proven to know the secret. One more costs the host with
            the most of them its oldest, which it has probably lost sight of; if each has one, the
            new one is turned away.
        unproven_max: connections that have not proven it yet, see `Unproven`; None: as many as
            there should be.

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
        unproven_max: int | None = None,
        handshake_s: float = HANDSHAKE_S,
        idle_s: float = IDLE_S,
        stall_s: float = STALL_S,
        tick_s: float = TICK_S,
    ) -> None:
        assert secret, "without a secret anybody is a peer"
        self._source = source
        self._fail = fail
        self._pace = Pace(bytes_per_s)
        self._connections_max = connections_max
        self._idle_s = idle_s
        self._stall_s = stall_s
        self.counts = ServerCounts()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._peers: dict[threading.Thread, _Peer] = {}  # the oldest first
        family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
        self._listener = socket.create_server(listen, family=family, backlog=BACKLOG)
        host, port = self._listener.getsockname()[:2]
        self.address: tuple[str, int] = (host, port)
        self._admission = Admission(
            self._listener, tls, partial(Welcome, secret, host_id), self._admit, self.counts,
            self._stopping, unproven_max=unproven_max or _unproven_max(), handshake_s=handshake_s,
            tick_s=tick_s,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._run_admission, name="kv-peers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Cut all connections and end."""
        self._stopping.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # which ends the wait for the next one
        self._thread.join()
        self._listener.close()
        with self._lock:
            threads = list(self._peers)
            for peer in self._peers.values():
                peer.stream.abort()
        for thread in threads:
            thread.join()

    @property
    def num_connections(self) -> int:
        """Those that are open, proven or not."""
        return len(self._peers) + self._admission.num_connections

    def _run_admission(self) -> None:
        try:
            self._admission.run()
        except Exception as error:
            self._fail(error)

    def _admit(self, stream: Stream, host_id: str, address: str) -> None:
        """A host has proven that it knows the secret."""
        thread = threading.Thread(
            target=self._serve, args=(stream, address), name="kv-peer", daemon=True
        )
        with self._lock:
            if has_room := not self._stopping.is_set() and self._make_room_for(host_id):
                self._peers[thread] = _Peer(stream, host_id)
        if not has_room:
            self.counts.add("num_turned_away")
            stream.close()
            return
        thread.start()

    def _make_room_for(self, host_id: str) -> bool:
        """Whether there is, perhaps because another connection leaves for it."""
        staying = [peer for peer in self._peers.values() if not peer.is_leaving]
        if len(staying) < self._connections_max:
            return True
        num_of = Counter(peer.host_id for peer in staying)
        crowded = max(num_of, key=lambda name: (num_of[name], name == host_id))
        if num_of[crowded] == 1 and crowded != host_id:
            return False
        leaving = next(peer for peer in staying if peer.host_id == crowded)
        leaving.is_leaving = True
        self.counts.add("num_turned_away")
        leaving.stream.abort()
        return True

    def _serve(self, stream: Stream, address: str) -> None:
        me = threading.current_thread()
        try:
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
                self._peers.pop(me, None)
            stream.close()


def _unproven_max() -> int:
    """Without taking too many of the files that the process may open."""
    num_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if num_files == resource.RLIM_INFINITY:
        return UNPROVEN_MAX
    return max(min(UNPROVEN_MAX, num_files // FILES_SHARE), 1)
