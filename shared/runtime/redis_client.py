"""A client of Redis that stays closed once it is.

redis-py reconnects whenever a command finds its connection gone, also when that was the client's
own `aclose`: a command that was under way then leaves a connection which is never closed.
"""

from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError

from shared.runtime.access import RedisAccess

CONNECTIONS_MAX = 64


class RedisClient(Redis):
    """Connects at its first command, and again where a restart of Redis broke a connection.

    Args:
        timeout_s: to connect, for an answer, and for a connection to come free.
    """

    def __init__(self, url: str, access: RedisAccess | None, *, timeout_s: float) -> None:
        self._is_closed = False
        pool: Any = BlockingConnectionPool.from_url(
            url,
            **(access or RedisAccess()).options(url),
            max_connections=CONNECTIONS_MAX,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 1),
            redis_connect_func=self._greet,
        )
        super().__init__(connection_pool=pool)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Disconnect. Commands under way fail, and so does every later one."""
        self._is_closed = True
        await self.connection_pool.disconnect()

    async def _greet(self, connection: Any) -> None:
        if self._is_closed:
            raise RedisConnectionError("this client is closed")
        await connection.on_connect()
