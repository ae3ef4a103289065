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
COUNT_KEY = "symphony:session_count"
TURN_KEY = "symphony:session_count:turn"  # who sets it counts for all; there until the next may


class SessionCount:
    """Reads through all names in Redis, a thousand a call, now and then; of all hosts one does.

    A count that fails or takes too long says nothing about Redis being there: the last one stays.

    Attributes:
        num_sessions: by the last count; about, if records came and went meanwhile.
    """

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self.num_sessions = 0

    async def run(self) -> None:
        """Learn it for ever."""
        while True:
            await self.learn()
            end_if_cancelled()
            await asyncio.sleep(INTERVAL_S)

    async def learn(self) -> None:
        """Count, if no host did a while ago; else take its count. If that can be done in time."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if await self._redis.set(TURN_KEY, b"1", nx=True, px=_ms(2 * TIMEOUT_S)):
                    await self._count()
                elif (counted := await self._redis.get(COUNT_KEY)) is not None:
                    self.num_sessions = int(counted)
        except (RedisError, OSError, ValueError) as error:  # a timeout is an OSError
            log.debug("sessions not counted", extra={"error": str(error)})

    async def _count(self) -> None:
        started_at_s = time.monotonic()
        keys = self._redis.scan_iter(match=session_redis_pattern(), count=CHUNK)
        self.num_sessions = sum([1 async for _ in keys])
        rest_s = max(INTERVAL_S, REST_PER_WORK * (time.monotonic() - started_at_s))
        await self._redis.set(COUNT_KEY, self.num_sessions, px=_ms(2 * rest_s + 2 * TIMEOUT_S))
        await self._redis.set(TURN_KEY, b"1", px=_ms(rest_s))


def session_redis_pattern() -> str:
    """Matches the keys of session records."""
    return session_redis_key(TenantId("*"), SessionId("*")).replace("1:*:*", "*")


def _ms(duration_s: float) -> int:
    return max(1, round(duration_s * 1e3))
