"""How many sessions Redis knows, counted in the background: nobody who asks makes any load."""

import asyncio
import logging
import time
from typing import Any

from redis.exceptions import RedisError

from shared.ids import SessionId, TenantId
from shared.sessions import session_redis_key
from shared.tasks import end_if_cancelled

log = logging.getLogger(__name__)

INTERVAL_S = 10.0
REST_PER_WORK = 100  # so long is rested for every second of counting
TIMEOUT_S = 30.0
CHUNK = 1000


class SessionCount:
    """Reads through all names in Redis, a thousand a call, now and then.

    A count that fails or takes too long says nothing about Redis being there: the last one stays.

    Attributes:
        num_sessions: by the last count; about, if records came and went meanwhile.
    """

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self.num_sessions = 0

    async def run(self) -> None:
        """Count for ever."""
        while True:
            started_at_s = time.monotonic()
            await self.count()
            end_if_cancelled()
            took_s = time.monotonic() - started_at_s
            await asyncio.sleep(max(INTERVAL_S, REST_PER_WORK * took_s))

    async def count(self) -> None:
        """Count once, if that can be done in time."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                keys = self._redis.scan_iter(match=session_redis_pattern(), count=CHUNK)
                self.num_sessions = sum([1 async for _ in keys])
        except (RedisError, OSError) as error:  # a timeout is an OSError
            log.debug("sessions not counted", extra={"error": str(error)})


def session_redis_pattern() -> str:
    """Matches the keys of session records."""
    return session_redis_key(TenantId("*"), SessionId("*")).replace("1:*:*", "*")
