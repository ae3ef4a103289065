"""Session records in Redis, where Redis may be slow, empty or gone: then a session is unknown."""

import asyncio
import logging
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from services.frontend import telemetry
from shared.clock import Clock
from shared.errors import MalformedMessage, NoCapacity
from shared.ids import SessionId, TenantId
from shared.sessions import SessionRecord, decode_record, encode_record, session_redis_key
from shared.sparsely import Sparsely

log = logging.getLogger(__name__)

PATIENCE_S = 0.25
PAUSE_NS = 1_000_000_000  # after a failure, requests do not wait for Redis for this long
CONNECTIONS_MAX = 64


class StoreAway(NoCapacity):
    """Redis did not answer in time."""

    code = "session_store_unavailable"


class SessionStore:
    """Reads and writes that take a quarter of a second at most and never fail a turn."""

    def __init__(self, url: str, clock: Clock, expiry_s: int) -> None:
        self._pool: Any = BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS_MAX,
            timeout=PATIENCE_S,
            socket_timeout=PATIENCE_S,
            socket_connect_timeout=PATIENCE_S,
            retry=Retry(NoBackoff(), 1),  # a connection that a restart broke is made anew
        )
        self._redis: Any = Redis(connection_pool=self._pool)
        self._clock = clock
        self.expiry_s = expiry_s
        self._is_up = True
        self._paused_until_ns = 0
        self._refusals = Sparsely()

    async def close(self) -> None:
        """Give the connections back."""
        await self._pool.disconnect()

    async def get(self, tenant: TenantId, session_id: SessionId) -> SessionRecord | None:
        """The session's record; None if there is none, or none can be had in time."""
        try:
            return await self.read(tenant, session_id)
        except StoreAway:
            return None

    async def read(self, tenant: TenantId, session_id: SessionId) -> SessionRecord | None:
        """The session's record, or None if there is none.

        Raises:
            StoreAway: it cannot be told.
        """
        data = await self._do("get", session_redis_key(tenant, session_id))
        if not isinstance(data, bytes):
            return None
        try:
            return decode_record(data)
        except MalformedMessage:
            return None  # of another release: the session is unknown

    async def put(self, record: SessionRecord) -> None:
        """Store the record, if that can be done in time."""
        key = session_redis_key(record.tenant, record.session_id)
        try:
            await self._do("set", key, encode_record(record), "EX", self.expiry_s)
        except StoreAway:
            return  # the next turn tokenizes anew

    async def delete(self, tenant: TenantId, session_id: SessionId) -> bool:
        """Forget the record; whether there was one.

        Raises:
            StoreAway: it cannot be told.
        """
        return bool(await self._do("del", session_redis_key(tenant, session_id)))

    async def _do(self, *command: str | bytes | int) -> object:
        if self._clock.now_ns() < self._paused_until_ns:
            raise StoreAway("the session store does not answer")
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer: object = await self._redis.execute_command(*command)
        except ResponseError as error:  # out of memory, or read-only: what it has can be read
            telemetry.SESSION_STORE_ERRORS.inc()
            if num := self._refusals.hear("refused", self._clock.now_ns()):
                log.warning("session store refuses", extra={"error": str(error), "num": num})
            raise StoreAway(f"the session store refuses: {error}") from None
        except (RedisError, OSError, TimeoutError) as error:
            telemetry.SESSION_STORE_ERRORS.inc()
            self._paused_until_ns = self._clock.now_ns() + PAUSE_NS
            self._note(up=False, why=f"{type(error).__name__}: {error}")
            raise StoreAway("the session store does not answer") from None
        self._note(up=True)
        return answer

    def _note(self, *, up: bool, why: str = "") -> None:
        """Log a change of state once."""
        if up == self._is_up:
            return
        self._is_up = up
        if up:
            log.info("session store is back")
        else:
            log.warning("session store away: sessions are unknown", extra={"error": why})
