"""How pages travel between hosts: what `Peering` needs, and the real thing, over TCP."""

import logging
import ssl
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Protocol

from services.kvstore.core import PageReads
from services.kvstore.peers.client import PeerClient
from services.kvstore.peers.fetches import PeerReport
from services.kvstore.peers.peer_limits import Identity, ServerLimits
from services.kvstore.peers.server import PeerServer
from services.kvstore.peers.sources import FindPart, PageSource, WithParts
from shared.arena import ArenaView
from shared.errors import ConfigError
from shared.ids import HostId
from shared.runtime.urls import join_address, split_address

log = logging.getLogger(__name__)


class PeerLink(Protocol):
    """Fetches from one peer.

    Attributes:
        address: host and port of the peer's server.
    """

    address: tuple[str, int]

    def submit(self, reads: Sequence[PageReads], timeout_s: float) -> None:
        """Fetch these pages; what has not come after `timeout_s` has failed."""
        ...

    def stop(self) -> None:
        """End at once: what has not come has failed, and is reported so. Blocks."""
        ...

    def events(self) -> Counter[str]:
        """What happened so far, by name, and `bytes_received`."""
        ...


class PeerTransport(Protocol):
    """Serves this host's pages to others, and connects to them."""

    def serve(self, source: PageSource) -> str:
        """Serve these pages. Returns the address where others fetch; empty: nowhere.

        Raises:
            ConfigError: it cannot listen.
        """
        ...

    def connect(
        self,
        peer_id: HostId,
        address: tuple[str, int],
        report: PeerReport,
        arenas: Mapping[int, ArenaView] | None = None,
    ) -> PeerLink:
        """A link to another host's kvstore.

        Args:
            report: called in any thread.
            arenas: by page size in bytes, where pages go; None: this host's.
        """
        ...

    def events(self) -> Counter[str]:
        """What the server did so far, by name, and `bytes_sent`."""
        ...

    def stop(self) -> None:
        """Serve no more. Blocks."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOptions:
    """Attributes:
    secret: that all hosts share.
    listen: where this host's server listens; port 0: a free one.
    shown_address: how others reach that, if not as it is written in `listen`.
    server_tls, client_tls: None: plain TCP.
    bytes_per_s: that all peers may take together; None: no limit.
    """

    host_id: HostId
    secret: bytes
    listen: str
    shown_address: str | None = None
    server_tls: ssl.SSLContext | None = None
    client_tls: ssl.SSLContext | None = None
    bytes_per_s: float | None = None


class TcpTransport:
    """A `PeerTransport` of sockets and threads.

    Args:
        arenas: by page size in bytes.
        fail: called in any thread with what must not have happened.
        find_part: finds what is served beside pages of KV.
    """

    def __init__(
        self,
        options: PeerOptions,
        arenas: Mapping[int, ArenaView],
        fail: Callable[[BaseException], None],
        find_part: FindPart = lambda key, number, num_bytes: None,
    ) -> None:
        self._options = options
        self._find_part = find_part
        self._arenas = arenas
        self._fail = fail
        self._server: PeerServer | None = None

    def serve(self, source: PageSource) -> str:
        options = self._options
        try:
            server = self._server = PeerServer(
                split_address(options.listen),
                Identity(options.host_id, options.secret, options.server_tls),
                WithParts(source, self._find_part),
                self._fail,
                ServerLimits(bytes_per_s=options.bytes_per_s),
            )
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else None
            raise ConfigError(f"SYMPHONY_PEER_LISTEN={options.listen!r}: {why or error}") from None
        host, port = server.address
        address = options.shown_address or join_address(host, port)
        if ip_address(host).is_loopback and options.shown_address is None:
            log.info("only kvstores on this machine can fetch here", extra={"at": address})
        return address

    def connect(
        self,
        peer_id: HostId,
        address: tuple[str, int],
        report: PeerReport,
        arenas: Mapping[int, ArenaView] | None = None,
    ) -> PeerLink:
        options = self._options
        identity = Identity(options.host_id, options.secret, options.client_tls)
        arenas = self._arenas if arenas is None else arenas
        return PeerClient(address, identity, arenas, report, self._fail, peer_id)

    def events(self) -> Counter[str]:
        if self._server is None:
            return Counter()
        seen = self._server.counts
        return Counter(
            refused=seen.num_refused, turned_away=seen.num_turned_away, cut_off=seen.num_cut_off,
            bytes_sent=seen.bytes_sent,
        )  # fmt: skip

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
