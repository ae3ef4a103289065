"""Both ends of the beginning of a connection; see `wire.py` and `proof.py`."""

import time
from collections.abc import Callable

from services.kvstore.peers.proof import Side, is_proven, new_nonce, prove
from services.kvstore.peers.stream import Broken, Stream, receive_exactly, send_all
from services.kvstore.peers.wire import (
    HELLO_BYTES,
    PROOF_BYTES,
    Hello,
    WireError,
    pack_hello,
    unpack_hello,
)


def greet(
    stream: Stream,
    secret: bytes,
    host_id: str,
    peer_id: str | None,
    until_s: float,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """The client's.

    Args:
        host_id: of this host.
        peer_id: of the one that is expected to answer; None: any of the deployment.
        until_s: by when it has to be over, `time.monotonic`.
        meanwhile: called while the other side is waited for.

    Raises:
        WireError: it is not the one that it should be.
        Broken: it does not answer.
    """
    _shake_hands(stream, until_s, meanwhile)
    client = Hello(host_id, new_nonce())
    send_all(stream, [pack_hello(client)], until_s)
    server = unpack_hello(receive_exactly(stream, HELLO_BYTES, until_s, meanwhile))
    if peer_id is not None and server.host_id != peer_id:
        raise WireError(f"it is host {server.host_id!r}, not {peer_id!r}")
    send_all(stream, [prove(secret, Side.CLIENT, client, server)], until_s)
    proof = receive_exactly(stream, PROOF_BYTES, until_s, meanwhile)
    if not is_proven(proof, secret, Side.SERVER, client, server):
        raise WireError("it does not know the secret")


class Welcome:
    """The server's, without I/O: receive `num_wanted` bytes, pass them to `receive` and send what
    that returns, until `client_id` is known.

    Args:
        host_id: of this host.

    Attributes:
        is_greeted: the client's hello was received.
        client_id: of the host that has connected, once it has proven to know the secret.
    """

    def __init__(self, secret: bytes, host_id: str) -> None:
        self._secret = secret
        self._host_id = host_id
        self._data = b""
        self._hellos: tuple[Hello, Hello] | None = None  # the client's and our own
        self.client_id: str | None = None

    @property
    def is_greeted(self) -> bool:
        return self._hellos is not None

    @property
    def num_wanted(self) -> int:
        """Bytes that may come now; 0: it is over."""
        if self.client_id is not None:
            return 0
        return (PROOF_BYTES if self.is_greeted else HELLO_BYTES) - len(self._data)

    def receive(self, data: bytes) -> bytes:
        """At most `num_wanted` bytes came; what is to be sent, perhaps nothing yet.

        Raises:
            WireError: it is no host of this deployment.
        """
        assert len(data) <= self.num_wanted, "more than was wanted"
        self._data += data
        if self.num_wanted:
            return b""
        whole, self._data = self._data, b""
        if self._hellos is None:
            client, server = self._hellos = unpack_hello(whole), Hello(self._host_id, new_nonce())
            return pack_hello(server)
        client, server = self._hellos
        if not is_proven(whole, self._secret, Side.CLIENT, client, server):
            raise WireError("it does not know the secret")
        self.client_id = client.host_id
        return prove(self._secret, Side.SERVER, client, server)


def _shake_hands(
    stream: Stream, until_s: float, meanwhile: Callable[[], None] = lambda: None
) -> None:
    while not stream.shake_hands():
        meanwhile()
        if time.monotonic() > until_s:
            raise Broken("the other side does not shake hands")
