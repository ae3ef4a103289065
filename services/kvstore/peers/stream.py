"""A connected TCP socket of which no call waits for ever, with or without TLS.

A call waits for at most a tick and then returns how far it came, so that the caller can look at
clocks and at whether it is to stop. The socket blocks and the kernel keeps the time: with a timeout
of Python's a page would take a call for each piece that arrives, and two for each of those.
"""

import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias

TICK_S = 0.1
INPUT_BYTES = 16 * 1024
_TIMEVAL = struct.Struct("ll")
_LINGER = struct.Struct("ii")  # whether close waits; for how many seconds
_TLS_PIECE_BYTES = 16 * 1024  # one record: what is written again after a tick has to be the same

Views: TypeAlias = list[memoryview]
Parts: TypeAlias = Sequence[bytes | memoryview]


class Broken(Exception):
    """The connection is of no use any more."""


class Stream(Protocol):
    """Bytes both ways; one thread uses it, others may only `abort` it."""

    def shake_hands(self) -> bool:
        """Whether what has to come before all bytes has, by the end of a tick: TLS' handshake.

        Raises:
            Broken: the other side's TLS is not to be trusted, or it has gone.
        """
        ...

    def receive(self, views: Views) -> int:
        """Fill these in order; how many bytes came within a tick.

        Raises:
            Broken: the other side has gone.
        """
        ...

    def receive_some(self) -> bytes:
        """What is there now, at most `INPUT_BYTES`; empty if nothing is.

        Raises:
            Broken: the other side has gone.
        """
        ...

    def send(self, parts: Parts) -> int:
        """Send these in order; how many bytes went within a tick.

        Raises:
            Broken: the other side has gone.
        """
        ...

    def wait(self, timeout_s: float) -> bool:
        """Whether there is something to receive by then."""
        ...

    def abort(self) -> None:
        """End every call, now and later, with `Broken`; from any thread."""
        ...

    def drop(self) -> None:
        """Have `close` throw away what was sent and not taken: the kernel holds it no longer."""
        ...

    def close(self) -> None:
        """Close the socket."""
        ...


class PlainStream:
    """TCP. A whole page is one call, however it arrives."""

    def shake_hands(self) -> bool:
        return True

    def __init__(self, sock: socket.socket, tick_s: float = TICK_S) -> None:
        self._socket = sock
        _prepare(sock)
        sock.settimeout(None)
        tick = _TIMEVAL.pack(int(tick_s), int(tick_s % 1 * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, tick)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, tick)

    def receive(self, views: Views) -> int:
        try:
            if len(views) == 1:
                num_bytes = self._socket.recv_into(views[0], 0, socket.MSG_WAITALL)
            else:
                num_bytes = self._socket.recvmsg_into(views, 0, socket.MSG_WAITALL)[0]
        except BlockingIOError:
            return 0
        except OSError as error:
            raise Broken(str(error)) from None
        if not num_bytes:
            raise Broken("closed by the other side")
        return num_bytes

    def receive_some(self) -> bytes:
        try:
            found = self._socket.recv(INPUT_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise Broken(str(error)) from None
        if not found:
            raise Broken("closed by the other side")
        return found

    def send(self, parts: Parts) -> int:
        try:
            return self._socket.sendmsg(parts, (), socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise Broken(str(error)) from None

    def wait(self, timeout_s: float) -> bool:
        return _is_readable(self._socket, timeout_s)

    def abort(self) -> None:
        _shut(self._socket)

    def drop(self) -> None:
        drop_unsent(self._socket)

    def close(self) -> None:
        self._socket.close()


class TlsStream:
    """TLS over TCP. Bytes are still decrypted straight into where they belong. Each record may wait
    for a tick, but none is waited for once the call has taken one: two ticks at the most.
    """

    def __init__(self, sock: ssl.SSLSocket, tick_s: float = TICK_S) -> None:
        self._socket = sock
        self._tick_s = tick_s
        _prepare(sock)
        sock.settimeout(tick_s)

    def shake_hands(self) -> bool:
        try:
            self._socket.do_handshake()  # goes on where the last call has stopped
        except TimeoutError:
            return False
        except (OSError, ValueError) as error:
            raise Broken(f"TLS: {error}") from None
        return True

    def receive(self, views: Views) -> int:
        until_s = time.monotonic() + self._tick_s
        num_bytes = 0
        for view in views:
            at = 0
            while at < len(view):
                try:
                    count = self._socket.recv_into(view[at:])
                except TimeoutError:
                    return num_bytes
                except OSError as error:
                    return _unless_none(num_bytes, str(error))
                if not count:
                    return _unless_none(num_bytes, "closed by the other side")
                at += count
                num_bytes += count
                if time.monotonic() >= until_s:
                    return num_bytes
        return num_bytes

    def receive_some(self) -> bytes:
        if not self._socket.pending() and not _is_readable(self._socket, 0.0):
            return b""
        try:
            found = self._socket.recv(INPUT_BYTES)
        except TimeoutError:
            return b""
        except OSError as error:
            raise Broken(str(error)) from None
        if not found:
            raise Broken("closed by the other side")
        return found

    def send(self, parts: Parts) -> int:
        until_s = time.monotonic() + self._tick_s
        num_bytes = 0
        for part in parts:
            view = memoryview(part)
            for at in range(0, len(view), _TLS_PIECE_BYTES):
                piece = view[at : at + _TLS_PIECE_BYTES]
                try:
                    count = self._socket.send(piece)
                except TimeoutError:
                    return num_bytes
                except OSError as error:
                    raise Broken(str(error)) from None
                num_bytes += count
                if count < len(piece) or time.monotonic() >= until_s:
                    return num_bytes
        return num_bytes

    def wait(self, timeout_s: float) -> bool:
        return bool(self._socket.pending()) or _is_readable(self._socket, timeout_s)

    def abort(self) -> None:
        _shut(self._socket)

    def drop(self) -> None:
        drop_unsent(self._socket)

    def close(self) -> None:
        self._socket.close()


def as_stream(sock: socket.socket, tick_s: float) -> Stream:
    """A stream on a connected socket, which belongs to it then.

    Raises:
        OSError: the other side has gone.
    """
    if isinstance(sock, ssl.SSLSocket):
        return TlsStream(sock, tick_s)
    return PlainStream(sock, tick_s)


def open_stream(
    sock: socket.socket, tls: ssl.SSLContext | None, tick_s: float, server_name: str | None = None
) -> Stream:
    """The client's stream on a connected socket, which belongs to it then. Waits for nothing: what
    may have to `abort` it has it before hands are shaken.

    Args:
        server_name: of the other side, for TLS.

    Raises:
        Broken: the other side has gone, or has no name that could be one.
    """
    try:
        if tls is None:
            return as_stream(sock, tick_s)
        wrapped = tls.wrap_socket(sock, server_hostname=server_name, do_handshake_on_connect=False)
        return as_stream(wrapped, tick_s)
    except (OSError, ValueError) as error:
        sock.close()
        raise Broken(str(error)) from None


def receive_exactly(
    stream: Stream, num_bytes: int, until_s: float, meanwhile: Callable[[], None] = lambda: None
) -> bytes:
    """So many bytes, by then (`time.monotonic`). `meanwhile` is called after each tick.

    Raises:
        Broken: they did not come.
    """
    raw = bytearray(num_bytes)
    left = [memoryview(raw)]
    while left:
        left = after(left, stream.receive(left))
        if left:
            meanwhile()
            if time.monotonic() > until_s:
                raise Broken("the other side says nothing")
    return bytes(raw)


def send_all(stream: Stream, parts: Parts, until_s: float) -> None:
    """Send these, by then (`time.monotonic`).

    Raises:
        Broken: the other side does not take them.
    """
    left = as_views(parts)
    while left:
        left = after(left, stream.send(left))
        if left and time.monotonic() > until_s:
            raise Broken("the other side takes nothing")


def as_views(parts: Parts) -> Views:
    return [memoryview(part) for part in parts]


def after(views: Views, num_bytes: int) -> Views:
    """What is left of these when so many bytes of them are done.

    >>> [bytes(view) for view in after([memoryview(b"abc"), memoryview(b"de")], 4)]
    [b'e']
    """
    for at, view in enumerate(views):
        if num_bytes < len(view):
            return [view[num_bytes:], *views[at + 1 :]]
        num_bytes -= len(view)
    return []


def _unless_none(num_bytes: int, why: str) -> int:
    """What came before the end, which the next call reports."""
    if not num_bytes:
        raise Broken(why)
    return num_bytes


def _prepare(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _is_readable(sock: socket.socket, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(timeout_s * 1e3))


def drop_unsent(sock: socket.socket) -> None:
    """Have `close` throw away what was sent and not taken, and forget the connection at once."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.pack(1, 0))


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):  # it is not connected any more
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # TLS' own forgets its keys under a reader
