"""The host that has the pages, for `symphony bench hosts`: ``python -m loadtest.bench.hosts.far``.

Says where it listens, and ends when its standard input does.
"""

import json
import os
import socket
import sys
import threading
from pathlib import Path

from loadtest.bench.hosts.shape import Shape
from services.kvstore.peers.limits import Identity
from services.kvstore.peers.server import PeerServer
from services.kvstore.peers.sources import DiskSource
from services.kvstore.tiers.disk import DiskDamaged
from shared.arena import Bytes

SECRET = b"bench hosts"


def main() -> None:
    """Arguments: JSON of ``folder``, ``host`` to listen on, and the three of `Shape`."""
    told = json.loads(sys.argv[1])
    shape = Shape(told["num_blocks"], told["num_layers"], told["page_bytes"])
    pages = shape.pages()
    disk = shape.store(Path(told["folder"]), pages)
    source = DiskSource(disk, _give_up)
    server = PeerServer((told["host"], 0), Identity("far", SECRET), source, _give_up)
    raw = socket.create_server((told["host"], 0))
    threading.Thread(target=_send_raw, args=(raw, pages), daemon=True).start()
    print(json.dumps({"peer": server.address[1], "raw": raw.getsockname()[1]}), flush=True)
    sys.stdin.read()
    server.stop()
    disk.close()


def _send_raw(listener: socket.socket, pages: Bytes) -> None:
    """All pages to whoever connects, with nothing around them."""
    while True:
        sock, _ = listener.accept()
        with sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for page in pages:
                view = memoryview(page)
                while view:
                    view = view[sock.sendmsg([view]) :]


def _give_up(error: BaseException | DiskDamaged) -> None:
    print(f"the far host failed: {error}", file=sys.stderr)
    os._exit(1)


if __name__ == "__main__":
    main()
