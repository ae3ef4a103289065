"""Fetches pages from the kvstore of one other host, straight into this host's arena.

As many connections as make it faster, while there is something to fetch, and a thread for each. A
page is believed if its header names what was asked for and its bytes are the ones that were once
stored under it. What another host of the deployment computed is not computed again: that is what
the secret is for.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple

from services.kvstore.core import Concurrency, PageReads
from services.kvstore.peers.connection import Connection, Target
from services.kvstore.peers.fetches import Fetch, Fetches, PeerReport
from services.kvstore.peers.fetching import ClientCounts
from services.kvstore.peers.peer_limits import ClientLimits, Identity
from shared.arena import ArenaView


class PeerClient:
    """Fetches from one peer.

    Args:
        address: host and port of the peer's server. A name that has to be looked up may take as
            long as that takes.
        identity: of this host.
        arenas: by page size in bytes.
        report: called with an order's results, and for how many seconds something was being fetched
            on a connection since the report before, so that bytes over seconds is how fast the peer
            gives them: in one of the client's threads, or by `submit`. It calls no method here.
        fail: called in a thread with what ended it.
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
        self._arenas = arenas
        self._report = report
        self._fail = fail
        self._limits = limits
        target = Target(address, identity, peer_id, limits)
        wanted = Concurrency(limits.connections, limits.connections[0])
        self._fetches = Fetches(arenas, report, wanted)
        self._connections = [
            Connection(target, self._fetches, number) for number in range(limits.connections[-1])
        ]
        # Guarded by `self._fetches.changed`:
        self._threads: dict[int, threading.Thread] = {}  # by number of the connection
        self._num_submitted = 0
        self._is_stopping = False

    def submit(self, reads: Sequence[PageReads], timeout_s: float) -> None:
        """Fetch these pages, among those of all orders in the order of `shared.wire.urgency`. What
        has not come after `timeout_s` has failed; without room for the order it fails at once.
        """
        until_s = time.monotonic() + timeout_s
        fetches = self._fetches
        with fetches.changed:
            self._num_submitted += 1
            fetch = Fetch(list(reads), until_s, self._num_submitted)
            if has_room := len(fetches) < self._limits.orders_max and not self._is_stopping:
                fetches.add(fetch)
                self._start_threads()
        if not has_room:
            refused = Fetches(self._arenas, self._report, fetches.connections)
            with refused.changed:
                refused.add(fetch)
                refused.end_late(float("inf"))

    def stop(self) -> None:
        """End, in the middle of a page if need be. What has not come has failed, and is reported
        so.
        """
        fetches = self._fetches
        with fetches.changed:
            self._is_stopping = True
            fetches.changed.notify_all()
            for connection in self._connections:
                connection.abort()
            threads = list(self._threads.values())
        for thread in threads:
            thread.join()
        with fetches.changed:
            fetches.end_late(float("inf"))

    @property
    def counts(self) -> ClientCounts:
        """Of all connections together."""
        of_each = [astuple(connection.counts) for connection in self._connections]
        return ClientCounts(*map(sum, zip(*of_each, strict=True)))

    def events(self) -> Counter[str]:
        """What happened so far, by name, and `bytes_received`."""
        seen = self.counts
        return Counter(
            connected=seen.num_connections, broken=seen.num_broken, lied=seen.num_refused,
            corrupt=seen.num_corrupt, resumed=seen.num_resumed, late=seen.num_late,
            bytes_received=seen.bytes_received,
        )  # fmt: skip

    def _start_threads(self) -> None:
        """One for each connection that there is to be and that has none."""
        for number in range(self._fetches.connections.level):
            if number not in self._threads:
                thread = threading.Thread(
                    target=self._run, args=(number,), name="kv-peer-client", daemon=True
                )
                self._threads[number] = thread
                thread.start()

    def _run(self, number: int) -> None:
        try:
            self._connections[number].run()
            with self._fetches.changed:
                del self._threads[number]
        except Exception as error:
            self._fail(error)
