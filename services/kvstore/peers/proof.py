"""Two kvstores prove to each other that they know the deployment's secret, without sending it.

A proof is an HMAC over everything that both have said. It names the side that gives it, so that
what one side proved cannot be sent back to it as the other's proof; each side's own nonce makes an
old proof worthless. The client goes first: a stranger who connects learns nothing that a secret
could be guessed from.

This authenticates the other end when a connection begins. An attacker who can change bytes in
between can still do that later: where networks are not trusted, both ends are given TLS.
"""

import hmac
import secrets
from enum import Enum
from hashlib import sha256

from services.kvstore.peers.wire import NONCE_BYTES, Hello, pack_hello


class Side(Enum):
    """The side that proves."""

    CLIENT = b"symphony kv peer: client"
    SERVER = b"symphony kv peer: server"


def new_nonce() -> bytes:
    """Bytes that are never used again."""
    return secrets.token_bytes(NONCE_BYTES)


def prove(secret: bytes, side: Side, client: Hello, server: Hello) -> bytes:
    """What this side sends; `PROOF_BYTES`."""
    said = side.value + pack_hello(client) + pack_hello(server)  # versions are in it, too
    return hmac.new(secret, said, sha256).digest()


def is_proven(proof: bytes, secret: bytes, side: Side, client: Hello, server: Hello) -> bool:
    """Whether the other side, which is `side`, knows the secret; takes as long whatever it sent."""
    return hmac.compare_digest(proof, prove(secret, side, client, server))
