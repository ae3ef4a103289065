"""One of a client's connections to a peer, and the thread that fetches on it."""

import logging
import socket
import time
from dataclasses import dataclass

from services.kvstore.peers.fetches import Fetches
from services.kvstore.peers.fetching import ClientCounts, Fetching
from services.kvstore.peers.handshake import greet
from services.kvstore.peers.peer_limits import ClientLimits, Identity
from services.kvstore.peers.requests import Requests
from services.kvstore.peers.stream import Broken, Stream, open_stream
from services.kvstore.peers.wire import WireError

log = logging.getLogger(__name__)

PAUSES_S = (0.0, 0.0, 0.05, 0.1, 0.2, 0.5, 1.0)  # before connecting, by failures one after another


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to connect to, and how.

    Attributes:
        address: host and port of the peer's server.
        identity: of this host.
        peer_id: of the host that must answer there; None: any host that knows the secret.
    """

    address: tuple[str, int]
    identity: Identity
    peer_id: str | None
    limits: ClientLimits


class Connection:
    """Args:
        fetches: that all connections share.
        number: of this one, from 0 on; the first is always wanted.

    Attributes:
        counts: what it has seen, over all times that it was made.
    """

    def __init__(self, target: Target, fetches: Fetches, number: int) -> None:
        self.counts = ClientCounts()
        self._target = target
        self._limits = target.limits
        self._fetches = fetches
        self._idle_s = target.limits.idle_s if number else None
        self._requests = Requests(fetches, number, target.limits.window_bytes)
        self._num_failures = 0
        self._is_stopping = False  # guarded by `fetches.changed`, as the stream is
        self._stream: Stream | None = None

    def run(self) -> None:
        """In its thread: until it is aborted, or, but for the first, until nothing was wanted of it
        for a while.
        """
        while self._wait(self._idle_s):
            self._pause()
            self._end_late()
            with self._fetches.changed:
                is_wanted = self._requests.is_wanted
            if is_wanted:
                self._connect_and_fetch()

    def abort(self) -> None:
        """End, in the middle of a page if need be; with `fetches.changed` held. What has not come
        is wanted again.
        """
        self._is_stopping = True
        if self._stream is not None:
            self._stream.abort()

    def _connect_and_fetch(self) -> None:
        """One connection's life."""
        counts, where = self.counts, self._target.address
        num_pages = counts.num_pages
        try:
            stream = self._connect()
            try:
                self._fetch(stream)
            finally:
                with self._fetches.changed:
                    self._stream = None
                stream.close()
        except Broken as error:
            counts.num_broken += 1
            self._num_failures = 1 if counts.num_pages > num_pages else self._num_failures + 1
            log.info("a peer is out of reach", extra={"peer": where, "error": str(error)})
            with self._fetches.changed:
                self._fetches.connections.on_refused()
        except WireError as error:
            counts.num_refused += 1
            self._num_failures = len(PAUSES_S)
            log.warning("a peer is refused", extra={"peer": where, "error": str(error)})
            with self._fetches.changed:
                self._fetches.end_late(float("inf"))
        counts.num_resumed += self._requests.ask_again()

    def _connect(self) -> Stream:
        target, limits = self._target, self._limits
        left_s = self._fetches.first_until_s - time.monotonic()
        try:
            sock = socket.create_connection(
                target.address, timeout=max(min(limits.connect_s, left_s), limits.tick_s)
            )
        except (OSError, ValueError) as error:  # ValueError: a name that cannot be one
            raise Broken(str(error)) from None
        stream = open_stream(sock, target.identity.tls, limits.tick_s, target.address[0])
        with self._fetches.changed:
            self._stream = stream
            if self._is_stopping:
                stream.abort()
        return stream

    def _fetch(self, stream: Stream) -> None:
        """Until nothing was wanted for a while."""
        until_s = time.monotonic() + self._limits.handshake_s
        identity = self._target.identity
        greet(
            stream, identity.secret, identity.host_id, self._target.peer_id, until_s, self._look_up
        )
        self.counts.num_connections += 1
        self._requests.on_connected()
        fetching = Fetching(
            stream, self._requests, self.counts, self._look_up, self._limits.stall_s
        )
        fetching.run()
        while self._wait(self._limits.idle_s):
            fetching.run()
        self._num_failures = 0

    def _look_up(self) -> None:
        """Raises:
        Broken: this client stops.
        """
        if self._is_stopping:
            raise Broken("stopping")
        self._end_late()

    def _end_late(self) -> None:
        self.counts.num_late += self._requests.end_late(time.monotonic())

    def _wait(self, timeout_s: float | None) -> bool:
        """Whether there is something to fetch; not, if there was nothing for so long or this client
        stops.
        """
        changed, requests = self._fetches.changed, self._requests
        with changed:
            changed.wait_for(lambda: requests.is_wanted or self._is_stopping, timeout_s)
            return requests.is_wanted and not self._is_stopping

    def _pause(self) -> None:
        """After failures, but not beyond the end of an order."""
        pause_s = PAUSES_S[min(self._num_failures, len(PAUSES_S) - 1)]
        pause_s = min(pause_s, self._fetches.first_until_s - time.monotonic())
        if pause_s > 0:
            with self._fetches.changed:
                self._fetches.changed.wait_for(lambda: self._is_stopping, pause_s)
