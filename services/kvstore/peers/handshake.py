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
        peer_id: of the one that is expected to answer; None: any of the house.
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


def welcome(stream: Stream, secret: bytes, host_id: str, until_s: float) -> str:
    """The server's; the id of the host that has connected.

    Raises:
        WireError: it is none of the house.
        Broken: it says nothing.
    """
    _shake_hands(stream, until_s)
    client = unpack_hello(receive_exactly(stream, HELLO_BYTES, until_s))
    server = Hello(host_id, new_nonce())
    send_all(stream, [pack_hello(server)], until_s)
    proof = receive_exactly(stream, PROOF_BYTES, until_s)
    if not is_proven(proof, secret, Side.CLIENT, client, server):
        raise WireError("it does not know the secret")
    send_all(stream, [prove(secret, Side.SERVER, client, server)], until_s)
    return client.host_id


def _shake_hands(
    stream: Stream, until_s: float, meanwhile: Callable[[], None] = lambda: None
) -> None:
    while not stream.shake_hands():
        meanwhile()
        if time.monotonic() > until_s:
            raise Broken("the other side does not shake hands")
