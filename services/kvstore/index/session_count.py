"""How many sessions Redis knows, counted in the background: asking costs nothing."""

import asyncio
import logging

from redis.exceptions import RedisError

from services.kvstore.index.redis_link import Redis
from shared.expiry import NS_PER_S
from shared.ids import SessionId, TenantId
from shared.runtime.clock import Clock
from shared.runtime.tasks import end_if_cancelled
from shared.wire.sessions import session_redis_key

log = logging.getLogger(__name__)

INTERVAL_S = 10.0
REST_PER_WORK = 100  # seconds of rest for every second of counting
TIMEOUT_S = 30.0
CHUNK = 1000
COUNT_KEY = "symphony:session_count"
TURN_KEY = "symphony:session_count:turn"  # the host that sets it counts for all; expires


class SessionCount:
    """Reads through all names in Redis, a thousand a call, now and then; of all hosts one does.

    A count that fails or takes too long says nothing about Redis being there: the last one stays.

    Attributes:
        num_sessions: by the last count; about, if records came and went meanwhile.
    """

    def __init__(self, redis: Redis, clock: Clock) -> None:
        self._redis = redis
        self._clock = clock
        self.num_sessions = 0

    async def run(self) -> None:
        """Keep the number up to date, for ever."""
        while True:
            await self.learn()
            end_if_cancelled()
            await asyncio.sleep(INTERVAL_S)

    async def learn(self) -> None:
        """Count, if no host did a while ago; else read its count. The last one stays on failure."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if await self._redis.set(TURN_KEY, b"1", nx=True, px=_ms(2 * TIMEOUT_S)):
                    await self._count()
                elif (counted := await self._redis.get(COUNT_KEY)) is not None:
                    self.num_sessions = int(counted)
        except (RedisError, OSError, ValueError) as error:  # a timeout is an OSError
            log.debug("sessions not counted", extra={"error": str(error)})

    async def _count(self) -> None:
        started_at_ns = self._clock.now_ns()
        keys = self._redis.scan_iter(match=session_redis_pattern(), count=CHUNK)
        self.num_sessions = sum([1 async for _ in keys])
        took_s = (self._clock.now_ns() - started_at_ns) / NS_PER_S
        rest_s = max(INTERVAL_S, REST_PER_WORK * took_s)
        await self._redis.set(COUNT_KEY, self.num_sessions, px=_ms(2 * rest_s + 2 * TIMEOUT_S))
        await self._redis.set(TURN_KEY, b"1", px=_ms(rest_s))


def session_redis_pattern() -> str:
    """Matches the keys of session records."""
    return session_redis_key(TenantId("*"), SessionId("*")).replace("1:*:*", "*")


def _ms(duration_s: float) -> int:
    return max(1, round(duration_s * 1e3))
