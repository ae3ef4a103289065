"""Redis: where sessions' KV is, and sessions' records. An index: what it loses is sent again, and
while it is away nothing fails here.
"""

import asyncio
import logging
import math
from base64 import urlsafe_b64encode

from redis.exceptions import RedisError

from services.kvstore.core import Locations, LocationUpdate
from services.kvstore.index.redis_link import Presence, Redis
from services.kvstore.index.session_count import SessionCount
from shared.errors import MalformedMessage
from shared.expiry import NS_PER_S
from shared.ids import HostId, SessionId, TenantId
from shared.locations import (
    KV_HOSTS_KEY,
    decode_claim,
    encode_claim,
    encode_location,
    location_redis_key,
)
from shared.randomness import random_bytes
from shared.runtime.clock import Clock
from shared.runtime.tasks import end_if_cancelled
from shared.wire.sessions import SessionRecord, decode_record, session_redis_key

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 2.0
CLOSE_TIMEOUT_S = 2.0  # what is not sent by then is sent after the next start
LIFE_BYTES = 6  # eight characters

# Keys: what hosts claim; the sessions'. Arguments: the host; its claim as it must stand there, if
# that matters; its new one; how long a session's key outlives this, seconds; the location of each
# session, empty: remove it. A key that is no hash is made one: it must not keep the keys after it
# from being set. Answers whether all was done. The claim comes last: it is true of what is there,
# whatever ends this before.
SEND_LOCATIONS = """
local host, before = ARGV[1], ARGV[2]
local function number_of(name)
  local info = redis.pcall('INFO', 'memory')
  return tonumber(type(info) == 'string' and string.match(info, '\\n' .. name .. ':(%d+)') or 0)
end
local bytes_max = number_of('maxmemory')
local is_tight = bytes_max > 0 and number_of('used_memory') > bytes_max * 7 / 8
local function set(key, field, value)
  local reply = redis.pcall('HSET', key, field, value)
  if type(reply) == 'table' and reply.err then
    if not string.find(reply.err, 'WRONGTYPE') then error(reply) end
    redis.call('DEL', key)
    redis.call('HSET', key, field, value)
  end
end
if before ~= '' and redis.call('HGET', KEYS[1], host) ~= before then return 0 end
for i = 2, #KEYS do
  if ARGV[i + 3] == '' then
    redis.pcall('HDEL', KEYS[i], host)
  elseif not is_tight or redis.call('EXISTS', KEYS[i]) == 1 then
    set(KEYS[i], host, ARGV[i + 3])
    if redis.call('TTL', KEYS[i]) < tonumber(ARGV[4]) then
      redis.call('EXPIRE', KEYS[i], ARGV[4])
    end
  end
end
redis.call('HSET', KEYS[1], host, ARGV[3])
return 1
"""


class RedisIndex:
    """Sends Redis where sessions' KV is on this host, as `locations` decides, and reads records.

    Args:
        ttl_s: how long what is sent of a session outlives its last use here, if the session has no
            longer expiry of its own.
    """

    def __init__(
        self, redis: Redis, host_id: HostId, ttl_s: float, locations: Locations, clock: Clock
    ) -> None:
        self._redis = redis
        self._host_id = host_id
        self._ttl_s = math.ceil(ttl_s)
        self._locations = locations
        self._clock = clock
        self._wake = asyncio.Event()
        self._presence = Presence("Redis is away")
        self._checked_at_ns: int | None = None
        self._sessions = SessionCount(redis, clock)

    async def close(self) -> None:
        """Send what is not sent yet, if Redis is there."""
        if self._presence.is_up:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._step()
            except (RedisError, OSError) as error:  # a timeout is an OSError
                self._presence.on_failed(error)

    def look(self) -> None:
        """Something may have changed on disk."""
        if self._locations.has_news:
            self._wake.set()

    async def run(self) -> None:
        """Keep Redis up to date and count its sessions, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.keep_in_step())
            tasks.create_task(self._sessions.run())

    async def record(self, tenant: TenantId, session_id: SessionId) -> SessionRecord | None:
        """A session's record, or None: unknown, of another release, or Redis is away."""
        try:
            data = await self._redis.get(session_redis_key(tenant, session_id))
        except (RedisError, OSError) as error:
            self._presence.on_failed(error)
            return None
        return _decode(data)

    async def count_sessions(self) -> int:
        """Session records in Redis when they were last counted. Asking makes no load."""
        return self._sessions.num_sessions

    async def keep_in_step(self) -> None:
        """Send Redis what is new, and check that it has lost nothing, for ever."""
        while True:
            try:
                is_in_step = await self._step()
                end_if_cancelled()
                self._presence.on_answered()
            except (RedisError, OSError) as error:
                end_if_cancelled()  # then it says nothing about Redis
                self._presence.on_failed(error)
                await asyncio.sleep(CHECK_INTERVAL_S)
                continue
            if not is_in_step:  # it lost something, or another kvstore uses this host's id
                await asyncio.sleep(CHECK_INTERVAL_S)
                continue
            try:
                async with asyncio.timeout(CHECK_INTERVAL_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _step(self) -> bool:
        """Check now and then whether Redis has what it was sent, and send it what is new; False if
        it turned out not to have it.
        """
        self._wake.clear()
        now_ns = self._clock.now_ns()
        checked_at_ns = self._checked_at_ns
        is_due = checked_at_ns is None or now_ns - checked_at_ns >= CHECK_INTERVAL_S * NS_PER_S
        if self._locations.is_in_doubt or is_due:
            await self._check()
            self._checked_at_ns = now_ns
        while self._locations.has_news and not self._locations.is_in_doubt:
            if (update := self._locations.take()) is None:
                await asyncio.sleep(0)  # there was much to look at, and nothing to send
                continue
            is_taken = False
            try:
                is_taken = await self._send(update)
            finally:  # also where a stop cut it off: `close` sends it
                if is_taken:
                    self._locations.on_sent()
                else:
                    self._locations.on_failed()
            if not is_taken:
                return False
        return True

    async def _check(self) -> None:
        claim = decode_claim(await self._redis.hget(KV_HOSTS_KEY, self._host_id))
        life = urlsafe_b64encode(random_bytes(LIFE_BYTES)).decode()
        self._locations.on_checked(claim, life)
        said = self._locations.said
        if said is not None and said.life == life:
            log.info("sending Redis all locations of sessions' KV again")

    async def _send(self, update: LocationUpdate) -> bool:
        """Whether Redis had what it was sent before, and so took this: all of it or nothing."""
        claim, before = update.claim, update.before
        keys = [KV_HOSTS_KEY, *map(location_redis_key, update.sessions)]
        said = [encode_location(claim.life, num) if num else "" for num in update.sessions.values()]
        is_taken = await self._redis.eval(
            SEND_LOCATIONS,
            len(keys),
            *keys,
            self._host_id,
            "" if before is None else encode_claim(before),
            encode_claim(claim),
            max(self._ttl_s, math.ceil(2 * update.expiry_ns / NS_PER_S)),
            *said,
        )
        return bool(is_taken)


def _decode(data: bytes | None) -> SessionRecord | None:
    if data is None:
        return None
    try:
        return decode_record(data)
    except MalformedMessage:
        return None
