"""Uvicorn on a listening socket."""

import asyncio
import math
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import uvicorn
from starlette.types import ASGIApp

from services.frontend.config import FrontendConfig
from services.frontend.http.connections import Connections
from shared.errors import ConfigError
from shared.runtime.clock import Clock

BACKLOG = 2048
KEEP_ALIVE_S = 75
UNSENT_BYTES = 64 * 1024  # of one connection in the kernel
SHUTDOWN_S = 2  # for streams to end with an error, after `drain_s`


class HttpServer(Protocol):
    """Passes HTTP requests to an ASGI application."""

    @property
    def url(self) -> str:
        """Where clients find it."""
        ...

    async def serve(self, api: ASGIApp) -> None:
        """Serve until `stop`, then let open requests finish, for `drain_s` at most."""
        ...

    def stop(self) -> None:
        """Take no new requests."""
        ...


class UvicornServer:
    """Listens from the moment that it is made; requests wait until `serve`.

    Raises:
        ConfigError: the address cannot be used, or the certificate.
    """

    def __init__(self, config: FrontendConfig, clock: Clock) -> None:
        _raise_file_limit()
        self._config = config
        self._tls_files = config.tls_files
        self._listener = listen(config.http_address, config.http_port)
        self._connections = Connections(config, clock)
        self._server: _Server | None = None
        self._is_stopping = False

    @property
    def url(self) -> str:
        address, port = self._listener.getsockname()[:2]
        return f"{'http' if self._tls_files is None else 'https'}://{address}:{port}"

    async def serve(self, api: ASGIApp) -> None:
        self._server = _Server(self._uvicorn_config(api))
        self._server.should_exit = self._is_stopping
        async with asyncio.TaskGroup() as tasks:
            sweep = tasks.create_task(self._connections.run(), name="connection timeouts")
            await self._server.serve([self._listener])
            sweep.cancel()

    def stop(self) -> None:
        self._is_stopping = True
        if self._server is not None:
            self._server.should_exit = True

    def _uvicorn_config(self, api: ASGIApp) -> uvicorn.Config:
        cert, key = self._tls_files or (None, None)
        return uvicorn.Config(
            api,
            http=self._connections.protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            ssl_certfile=cert,
            ssl_keyfile=key,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=math.ceil(self._config.drain_s) + SHUTDOWN_S,
        )


class _Server(uvicorn.Server):
    """Uvicorn without its own signal handlers: `shared.service` has them."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(address: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        ConfigError: the port is taken, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"SYMPHONY_HTTP_PORT={port}: cannot listen on {address}: {error.strerror}"
        ) from None
    # Both are inherited by connections. What a client does not read waits in this process, where
    # it is counted, and not in megabytes of the kernel's.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    # asyncio's own loop sets this only on sockets that name their protocol; without it an answer's
    # body waits 40 ms for the acknowledgement of its head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _raise_file_limit() -> None:
    """Allow as many open files as the system permits: some start programs with 1,024, which is
    what one address may have connections.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
