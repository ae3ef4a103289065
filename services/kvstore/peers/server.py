"""Sends this host's pages to the kvstores of others: one thread takes connections (`admission.py`),
each that has proven itself has its own, so that a slow peer holds up no other.
"""

import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from services.kvstore.peers.admission import Admission
from services.kvstore.peers.pace import Pace
from services.kvstore.peers.peer_limits import Identity, ServerLimits
from services.kvstore.peers.precedence import Precedence
from services.kvstore.peers.serving import ServerCounts, Serving
from services.kvstore.peers.sources import PageSource
from services.kvstore.peers.stream import Broken, Stream
from services.kvstore.peers.wire import WireError

log = logging.getLogger(__name__)

BACKLOG = 4096  # connections that the kernel accepts before we do; it may hold it to fewer


@dataclass(slots=True)
class _Peer:
    """Attributes:
    precedence: of its host's connections.
    is_leaving: its place is another's; its thread ends soon.
    """

    stream: Stream
    host_id: str
    precedence: Precedence
    is_leaving: bool = False


class PeerServer:
    """Listens from the moment it is made until `stop`.

    Args:
        listen: host and port; port 0 takes a free one.
        identity: of this host.
        fail: called with what ended one of its threads.

    Attributes:
        address: host and port where it listens.

    Raises, when made:
        OSError: it cannot listen there.
    """

    def __init__(
        self,
        listen: tuple[str, int],
        identity: Identity,
        source: PageSource,
        fail: Callable[[BaseException], None],
        limits: ServerLimits = ServerLimits(),  # noqa: B008 (frozen)
    ) -> None:
        self._source = source
        self._fail = fail
        self._pace = Pace(limits.bytes_per_s)
        self._limits = limits
        self.counts = ServerCounts()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._peers: dict[threading.Thread, _Peer] = {}  # the oldest first
        family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
        self._listener = socket.create_server(listen, family=family, backlog=BACKLOG)
        host, port = self._listener.getsockname()[:2]
        self.address: tuple[str, int] = (host, port)
        self._admission = Admission(
            self._listener, identity, self._admit, self.counts, self._stopping, limits
        )
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
        with self._lock:
            of_host = [peer for peer in self._peers.values() if peer.host_id == host_id]
            precedence = of_host[0].precedence if of_host else Precedence()
            thread = threading.Thread(
                target=self._serve, args=(stream, address, precedence), name="kv-peer", daemon=True
            )
            if has_room := not self._stopping.is_set() and self._make_room_for(host_id):
                self._peers[thread] = _Peer(stream, host_id, precedence)
        if not has_room:
            self.counts.add("num_turned_away")
            stream.close()
            return
        thread.start()

    def _make_room_for(self, host_id: str) -> bool:
        """Whether there is, perhaps because another connection leaves for it."""
        staying = [peer for peer in self._peers.values() if not peer.is_leaving]
        if len(staying) < self._limits.connections_max:
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

    def _serve(self, stream: Stream, address: str, precedence: Precedence) -> None:
        me = threading.current_thread()
        try:
            Serving(
                stream, self._source, self._pace, precedence, self.counts, self._stopping,
                self._limits,
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
