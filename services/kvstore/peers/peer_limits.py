"""The identity of a kvstore among its peers, and the limits of its connections."""

import ssl
from dataclasses import dataclass

from services.kvstore.peers.stream import TICK_S

CONNECTIONS_MAX = 64
CLIENT_CONNECTIONS = (1, 2, 4, 8)
ORDERS_MAX = 16
WINDOW_BYTES = 16 * 1024 * 1024
# Far more than a network takes: a try while the link is down is lost, the next one need not be.
CONNECT_S = 0.5
HANDSHAKE_S = 3.0
CLIENT_STALL_S = 1.0  # leaves time to ask again (`peering.FETCH_S`); twice `pace.PAUSE_S`
SERVER_STALL_S = 5.0
CLIENT_IDLE_S = 60.0
SERVER_IDLE_S = 300.0


@dataclass(frozen=True, slots=True)
class Identity:
    """Attributes:
    host_id: of this host.
    secret: the deployment's: a host that proves that it knows it is a peer.
    tls: of the client's or the server's side; None: plain TCP.
    """

    host_id: str
    secret: bytes
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        assert self.secret, "without a secret any host is a peer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Attributes:
    connections: to a peer at a time, of which the client chooses by measurement.
    window_bytes: requested at a time on all of them, and not received yet.
    orders_max: not finished, at a time.
    """

    connections: tuple[int, ...] = CLIENT_CONNECTIONS
    window_bytes: int = WINDOW_BYTES
    orders_max: int = ORDERS_MAX
    connect_s: float = CONNECT_S
    handshake_s: float = HANDSHAKE_S
    stall_s: float = CLIENT_STALL_S
    idle_s: float = CLIENT_IDLE_S
    tick_s: float = TICK_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Attributes:
    bytes_per_s: that all peers together may take; None: no limit.
    connections_max: of hosts that have proven to know the secret. One more costs the host with the
        most of them its oldest, which it has probably lost; if each has one, the new one is turned
        away.
    unproven_max: connections that have not proven it yet, see `Unproven`; None: as many as there
        should be.
    """

    bytes_per_s: float | None = None
    connections_max: int = CONNECTIONS_MAX
    unproven_max: int | None = None
    handshake_s: float = HANDSHAKE_S
    idle_s: float = SERVER_IDLE_S
    stall_s: float = SERVER_STALL_S
    tick_s: float = TICK_S
