"""Redis: where sessions' KV is, and sessions' records. An index: what it loses is told again, and
while it is away nothing fails here.
"""

import asyncio
import logging
import math
import time
from base64 import urlsafe_b64encode
from typing import Any

from redis.exceptions import RedisError

from services.kvstore.core import Locations, LocationUpdate
from services.kvstore.index.redis_link import Presence, connect
from services.kvstore.index.session_count import SessionCount
from shared.access import RedisAccess
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
from shared.sessions import SessionRecord, decode_record, session_redis_key
from shared.tasks import end_if_cancelled

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 2.0
CLOSE_TIMEOUT_S = 2.0  # what is not told by then is told after the next start
LIFE_BYTES = 6  # eight characters

# Keys: what hosts claim; the sessions'. Arguments: the host; its claim as it must stand there, if
# that matters; its new one; how long a session's key outlives this, seconds; what to say of each
# session, nothing: take back what was said. A key that is no hash is made one: it must not keep
# what is behind it from being told. Answers whether all was done. The claim comes last: it is true
# of what is there, whatever ends this before.
_TELL = """
local host, before = ARGV[1], ARGV[2]
local function number_of(name)
  local info = redis.pcall('INFO', 'memory')
  return tonumber(type(info) == 'string' and string.match(info, '\\n' .. name .. ':(%d+)') or 0)
end
local bytes_max = number_of('maxmemory')
local is_tight = bytes_max > 0 and number_of('used_memory') > bytes_max * 7 / 8
local function set(key, field, value)
  local told = redis.pcall('HSET', key, field, value)
  if type(told) == 'table' and told.err then
    if not string.find(told.err, 'WRONGTYPE') then error(told) end
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
    """Tells Redis where sessions' KV is on this host, as `locations` decides, and reads records.

    Args:
        ttl_s: how long what is told of a session outlives its last use here, if the session has no
            longer expiry of its own.
    """

    def __init__(
        self,
        url: str,
        host_id: HostId,
        ttl_s: float,
        locations: Locations,
        access: RedisAccess | None = None,
    ) -> None:
        self._redis: Any = connect(url, access)
        self._host_id = host_id
        self._ttl_s = math.ceil(ttl_s)
        self._locations = locations
        self._wake = asyncio.Event()
        self._presence = Presence("Redis is away")
        self._checked_at_s = -math.inf
        self._sessions = SessionCount(self._redis)

    async def close(self) -> None:
        """Tell what is not told yet, if Redis is there, and disconnect."""
        if self._presence.is_up:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._step()
            except (RedisError, OSError) as error:  # a timeout is an OSError
                self._presence.on_failed(error)
        await self._redis.aclose()

    def look(self) -> None:
        """Something may have changed on disk."""
        if self._locations.has_news:
            self._wake.set()

    async def run(self) -> None:
        """Keep Redis in step and count its sessions, for ever."""
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
        """Tell Redis what is new, and see that it has lost nothing, for ever."""
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
        """See whether Redis has what it was told, now and then, and tell it what is new; False if
        it turned out not to have it.
        """
        self._wake.clear()
        now_s = time.monotonic()
        if self._locations.is_in_doubt or now_s - self._checked_at_s >= CHECK_INTERVAL_S:
            await self._check()
            self._checked_at_s = now_s
        while self._locations.has_news and not self._locations.is_in_doubt:
            if (update := self._locations.take()) is None:
                await asyncio.sleep(0)  # there was much to look at, and nothing to tell
                continue
            is_told = False
            try:
                is_told = await self._send(update)
            finally:  # also where a stop cut it off: `close` tells it
                if is_told:
                    self._locations.on_sent()
                else:
                    self._locations.on_failed()
            if not is_told:
                return False
        return True

    async def _check(self) -> None:
        claim = decode_claim(await self._redis.hget(KV_HOSTS_KEY, self._host_id))
        life = urlsafe_b64encode(random_bytes(LIFE_BYTES)).decode()
        self._locations.on_checked(claim, life)
        said = self._locations.said
        if said is not None and said.life == life:
            log.info("telling Redis anew where sessions' KV is")

    async def _send(self, update: LocationUpdate) -> bool:
        """Whether Redis had what it was told before, and so took this: all of it or nothing."""
        claim, before = update.claim, update.before
        keys = [KV_HOSTS_KEY, *map(location_redis_key, update.sessions)]
        said = [encode_location(claim.life, num) if num else "" for num in update.sessions.values()]
        is_told = await self._redis.eval(
            _TELL,
            len(keys),
            *keys,
            self._host_id,
            "" if before is None else encode_claim(before),
            encode_claim(claim),
            max(self._ttl_s, math.ceil(2 * update.expiry_ns / NS_PER_S)),
            *said,
        )
        return bool(is_told)


def _decode(data: bytes | None) -> SessionRecord | None:
    if data is None:
        return None
    try:
        return decode_record(data)
    except MalformedMessage:
        return None
