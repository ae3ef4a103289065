"""Fetches pages from the kvstore of one other host, straight into this host's arena.

One thread and, while there is something to fetch, one connection. A page is believed if its header
names what was asked for and its bytes are the ones that were once stored under it. What another
host of the deployment computed is not computed again: that is what the secret is for.
"""

import logging
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from services.kvstore.core import PageReads
from services.kvstore.peers.fetches import Fetch, Fetches, PeerRead, PeerReport
from services.kvstore.peers.fetching import ClientCounts, Fetching
from services.kvstore.peers.handshake import greet
from services.kvstore.peers.peer_limits import ClientLimits, Identity
from services.kvstore.peers.stream import Broken, Stream, open_stream
from services.kvstore.peers.wire import WireError
from shared.arena import ArenaView

log = logging.getLogger(__name__)

PAUSES_S = (0.0, 0.0, 0.05, 0.1, 0.2, 0.5, 1.0)  # before connecting, by failures one after another


class PeerClient:
    """Fetches from one peer.

    Args:
        address: host and port of the peer's server. A name that has to be looked up may take as
            long as that takes.
        identity: of this host.
        arenas: by page size in bytes.
        report: called with an order's results, and for how many seconds something was being fetched
            on a connection since the report before, so that bytes over seconds is how fast the peer
            gives them: in this thread, or by `submit`.
        fail: called in this thread with what ended it.
        peer_id: of the host that must answer there; None: any host that knows the secret.
    """

    def __init__(
        self,
        address: tuple[str, int],
        identity: Identity,
        arenas: Mapping[int, ArenaView],
        report: PeerReport,
        fail: Callable[[BaseException], None],
        peer_id: str | None = None,
        limits: ClientLimits = ClientLimits(),  # noqa: B008 (frozen)
    ) -> None:
        self.address = address
        self.counts = ClientCounts()
        self._identity = identity
        self._arenas = arenas
        self._report = report
        self._fail = fail
        self._peer_id = peer_id
        self._limits = limits
        self._fetches = Fetches(arenas, self._on_finished, limits.window_bytes)
        self._num_failures = 0
        self._changed = threading.Condition()  # guards what follows
        self._incoming: deque[Fetch] = deque()
        self._num_open = 0
        self._num_submitted = 0
        self._is_stopping = False
        self._stream: Stream | None = None
        self._thread = threading.Thread(target=self._run, name="kv-peer-client", daemon=True)
        self._thread.start()

    def submit(self, reads: Sequence[PageReads], priority: int, timeout_s: float) -> None:
        """Fetch these pages, among those of all orders in the order of `shared.wire.urgency`. What
        has not come after `timeout_s` has failed; without room for the order it fails at once.
        """
        until_s = time.monotonic() + timeout_s
        with self._changed:
            self._num_submitted += 1
            fetch = Fetch(list(reads), priority, until_s, self._num_submitted)
            if has_room := self._num_open < self._limits.orders_max and not self._is_stopping:
                self._num_open += 1
                self._incoming.append(fetch)
                self._changed.notify_all()
        if not has_room:
            refused = Fetches(self._arenas, self._report, 0)
            refused.add(fetch)
            refused.fail_all()

    def stop(self) -> None:
        """End, in the middle of a page if need be. What has not come has failed, and is reported
        so.
        """
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
            if self._stream is not None:
                self._stream.abort()
        self._thread.join()

    def events(self) -> Counter[str]:
        """What happened so far, by name, and `bytes_received`."""
        seen = self.counts
        return Counter(
            connected=seen.num_connections, broken=seen.num_broken, lied=seen.num_refused,
            corrupt=seen.num_corrupt, resumed=seen.num_resumed, late=seen.num_late,
            bytes_received=seen.bytes_received,
        )  # fmt: skip

    def _run(self) -> None:
        try:
            while self._wait_for_orders(None):
                self._take_in()
                self._pause()
                self._fail_late()
                if self._fetches:
                    self._connect_and_fetch()
            self._take_in()
            self._fetches.fail_all()
        except Exception as error:
            self._fail(error)

    def _connect_and_fetch(self) -> None:
        """One connection's life."""
        num_pages = self.counts.num_pages
        try:
            stream = self._connect()
            try:
                self._fetch(stream)
            finally:
                with self._changed:
                    self._stream = None
                stream.close()
        except Broken as error:
            self.counts.num_broken += 1
            self._num_failures = 1 if self.counts.num_pages > num_pages else self._num_failures + 1
            log.info("a peer is out of reach", extra={"peer": self.address, "error": str(error)})
        except WireError as error:
            self.counts.num_refused += 1
            self._num_failures = len(PAUSES_S)
            log.warning("a peer is refused", extra={"peer": self.address, "error": str(error)})
            self._take_in()
            self._fetches.fail_all()
        self.counts.num_resumed += self._fetches.ask_again()

    def _connect(self) -> Stream:
        left_s = self._fetches.first_until_s - time.monotonic()
        try:
            sock = socket.create_connection(
                self.address, timeout=max(min(self._limits.connect_s, left_s), self._limits.tick_s)
            )
        except (OSError, ValueError) as error:  # ValueError: a name that cannot be one
            raise Broken(str(error)) from None
        stream = open_stream(sock, self._identity.tls, self._limits.tick_s, self.address[0])
        with self._changed:
            self._stream = stream
            if self._is_stopping:
                stream.abort()
        return stream

    def _fetch(self, stream: Stream) -> None:
        """Until nothing was wanted for a while."""
        until_s = time.monotonic() + self._limits.handshake_s
        greet(
            stream, self._identity.secret, self._identity.host_id, self._peer_id, until_s,
            self._look_up,
        )  # fmt: skip
        self.counts.num_connections += 1
        self._fetches.on_connected()
        fetching = Fetching(stream, self._fetches, self.counts, self._look_up, self._limits.stall_s)
        fetching.run()
        while self._wait_for_orders(self._limits.idle_s):
            fetching.run()
        self._num_failures = 0

    def _look_up(self) -> None:
        """Raises:
        Broken: this client stops.
        """
        if self._is_stopping:
            raise Broken("stopping")
        if self._incoming:
            self._take_in()
        self._fail_late()

    def _wait_for_orders(self, timeout_s: float | None) -> bool:
        """Whether there are some; not, if there were none for so long or this client stops."""
        if self._fetches and not self._is_stopping:
            return True
        with self._changed:
            self._changed.wait_for(lambda: self._incoming or self._is_stopping, timeout_s)
            return bool(self._incoming) and not self._is_stopping

    def _take_in(self) -> None:
        with self._changed:
            incoming = list(self._incoming)
            self._incoming.clear()
        for fetch in incoming:
            self._fetches.add(fetch)

    def _fail_late(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._fetches.first_until_s:
            self.counts.num_late += self._fetches.fail_late(now_s)

    def _pause(self) -> None:
        """After failures, but not beyond the end of an order."""
        pause_s = PAUSES_S[min(self._num_failures, len(PAUSES_S) - 1)]
        pause_s = min(pause_s, self._fetches.first_until_s - time.monotonic())
        if pause_s > 0:
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopping, pause_s)

    def _on_finished(self, results: list[PeerRead], took_s: float) -> None:
        with self._changed:
            self._num_open -= 1
        self._report(results, took_s)
