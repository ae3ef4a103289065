"""A link between two hosts on one machine that can be cut: then nothing passes any more, and nobody
is told.
"""

import selectors
import socket
import threading
import time
from contextlib import suppress
from types import TracebackType

CHUNK_BYTES = 256 * 1024
LOOK_S = 0.05
STUCK_S = 5.0  # for the side that is passed something to take it


class Relay:
    """Passes on what comes, to a port of this machine and back. Once it is cut, whoever connects
    gets no answer.

    Attributes:
        address: where it listens.
        cut_at_s: when it was cut, by the machine's monotonic clock; None: it was not.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, its_port = self._listener.getsockname()[:2]
        self.address = f"{host}:{its_port}"
        self.cut_at_s: float | None = None
        self._num_bytes = 0
        self._cut_at_bytes: int | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Relay":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_stopping = True
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            with suppress(OSError):
                key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def cut_after(self, num_bytes: int) -> None:
        """Be cut when so many more have come back from the port."""
        self.cut_at_s = None
        self._cut_at_bytes = self._num_bytes + num_bytes

    def mend(self) -> None:
        """Pass on again, from where it stopped."""
        self._cut_at_bytes = None
        self.cut_at_s = None

    def _run(self) -> None:
        while not self._is_stopping:
            if self.cut_at_s is not None:
                time.sleep(LOOK_S)
                continue
            for key, _ in self._selector.select(LOOK_S):
                if key.fileobj is self._listener:
                    self._accept()
                elif self.cut_at_s is None:
                    assert isinstance(key.fileobj, socket.socket)
                    self._pass_on(key.fileobj, *key.data)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", self._port))
        except OSError:
            near.close()
            return
        for sock in (near, far):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(STUCK_S)
        self._selector.register(near, selectors.EVENT_READ, (far, False))
        self._selector.register(far, selectors.EVENT_READ, (near, True))

    def _pass_on(self, sock: socket.socket, other: socket.socket, is_back: bool) -> None:
        limit = CHUNK_BYTES
        if is_back and self._cut_at_bytes is not None:
            limit = min(limit, self._cut_at_bytes - self._num_bytes)
        try:
            if data := sock.recv(limit):
                other.sendall(data)
        except OSError:
            data = b""
        if not data:
            for each in (sock, other):
                with suppress(KeyError, ValueError):
                    self._selector.unregister(each)
                each.close()
            return
        if is_back:
            self._num_bytes += len(data)
            if self._num_bytes == self._cut_at_bytes:
                self.cut_at_s = time.monotonic()
