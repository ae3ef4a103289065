"""The names of adapters in Redis. An index: what it loses is published again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from typing import Any

from redis.exceptions import RedisError

from services.kvstore.core.registry import Name
from services.kvstore.index.redis_link import TIMEOUT_S, Presence, Redis
from shared.adapters.record import (
    GONE_S,
    adapter_gone_redis_key,
    adapter_member,
    adapters_gone_redis_key,
    adapters_redis_key,
    decode_adapter,
    encode_adapter,
    host_adapters_redis_key,
    host_state_redis_key,
    of_member,
)
from shared.errors import MalformedMessage, NoCapacity
from shared.ids import HostId, TenantId
from shared.runtime.tasks import end_if_cancelled
from shared.wire.messages import AdapterRecord

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 2.0

# Keys: the tenant's records; the note of the name's removal; what this host has published; what
# that is as one hash; the tenant's notes. Arguments: name, record, revision, member, that hash
# before and now. Answers 1, or 0 if what stands, or was removed, has as high a revision. Redis may
# have lost everything since this host last looked: then the hash is not what it was, and all is
# published again.
_PUT = """
local standing = redis.call('HGET', KEYS[1], ARGV[1])
if standing ~= ARGV[2] then
  local gone = redis.call('GET', KEYS[2])
  if gone and tonumber(gone) >= tonumber(ARGV[3]) then return 0 end
  if standing then
    local ok, fields = pcall(cjson.decode, standing)
    local revision = ok and type(fields) == 'table' and tonumber(fields['revision'])
    if revision and revision >= tonumber(ARGV[3]) then return 0 end
  end
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  redis.call('DEL', KEYS[2])
  redis.call('ZREM', KEYS[5], ARGV[1])
end
redis.call('SADD', KEYS[3], ARGV[4])
if redis.call('GET', KEYS[4]) == ARGV[5] then redis.call('SET', KEYS[4], ARGV[6]) end
return 1
"""

# Keys: the same. Arguments: name, host, seconds, member, the hash before and now. What this host
# published and has not is removed, under a higher revision than it had; what another one published
# stays. Answers that revision, or 0.
_WITHDRAW = """
local standing = redis.call('HGET', KEYS[1], ARGV[1])
local revision = 0
if standing then
  local ok, fields = pcall(cjson.decode, standing)
  if not ok or type(fields) ~= 'table' or fields['host_id'] == ARGV[2] then
    revision = (ok and type(fields) == 'table' and tonumber(fields['revision']) or 0) + 1
    redis.call('SET', KEYS[2], string.format('%d', revision), 'EX', ARGV[3])
    local now_s = redis.call('TIME')[1]
    redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', now_s)
    redis.call('ZADD', KEYS[5], now_s + ARGV[3], ARGV[1])
    redis.call('EXPIRE', KEYS[5], ARGV[3])
    redis.call('HDEL', KEYS[1], ARGV[1])
  end
end
redis.call('SREM', KEYS[3], ARGV[4])
if redis.call('GET', KEYS[4]) == ARGV[5] then redis.call('SET', KEYS[4], ARGV[6]) end
return revision
"""


class AdapterStoreAway(NoCapacity):
    """Redis did not answer in time, or takes no writes: names cannot change."""

    code = "adapter_store_unavailable"


class AdapterIndex:
    """Publishes this host's names.

    Args:
        state: of this host's records, as one hash, at any moment.
        names: of those.
        republish: called when Redis may have lost some: is to `put` every record, and to `withdraw`
            what else is `published`.
    """

    def __init__(
        self,
        redis: Redis,
        host_id: HostId,
        state: Callable[[], str],
        names: Callable[[], AbstractSet[Name]],
        republish: Callable[[], Awaitable[None]],
    ) -> None:
        self._redis = redis
        self._host_id = host_id
        self._state = state
        self._names = names
        self._republish = republish
        self._presence = Presence("Redis is away: adapters cannot change")

    async def run(self) -> None:
        """Keep Redis in step, for ever."""
        while True:
            try:
                if not await self.is_in_step():
                    await self._republish()
                    await self._confirm()
                end_if_cancelled()
                self._presence.on_answered()
            except AdapterStoreAway:
                end_if_cancelled()  # then it says nothing about Redis
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def is_in_step(self) -> bool:
        """Whether Redis says that it has what this host has.

        Raises:
            AdapterStoreAway: it says nothing.
        """
        said = await self._do(self._redis.get(host_state_redis_key(self._host_id)))
        return said is not None and said.decode() == self._state()

    async def standing(self, name: Name) -> tuple[AdapterRecord | None, int]:
        """What stands under a name, and the highest revision that it had.

        Raises:
            AdapterStoreAway: it is not known.
        """
        tenant, own = name
        record = _decode(await self._do(self._redis.hget(adapters_redis_key(tenant), own)))
        gone = await self._do(self._redis.get(adapter_gone_redis_key(tenant, own)))
        revisions = (0 if record is None else record.revision, 0 if gone is None else int(gone))
        return record, max(revisions)

    async def num_gone(self, tenant: TenantId) -> int:
        """How many names of the tenant's have a note that they were removed.

        Raises:
            AdapterStoreAway: it is not known.
        """
        now_s, _ = await self._do(self._redis.time())
        key = adapters_gone_redis_key(tenant)
        return int(await self._do(self._redis.zcount(key, now_s, "+inf")))

    async def put(self, record: AdapterRecord, before: str = "") -> bool:
        """Publish a record, unless something stands there under as high a revision.

        Args:
            before: the state before it stood here.

        Raises:
            AdapterStoreAway: it may be published, or not.
        """
        name = record.tenant, record.name
        data = encode_adapter(record)
        states = before, self._state()
        arguments = (record.name, data, record.revision, adapter_member(*name), *states)
        return bool(await self._do(self._redis.eval(_PUT, 5, *self._keys(name), *arguments)))

    async def withdraw(self, name: Name, before: str = "") -> int:
        """Publish that this host has nothing under a name any more. Returns the revision of that;
        0: another host has something.

        Args:
            before: the state before it fell here.

        Raises:
            AdapterStoreAway: it may be published, or not.
        """
        states = before, self._state()
        arguments = (name[1], self._host_id, GONE_S, adapter_member(*name), *states)
        return int(await self._do(self._redis.eval(_WITHDRAW, 5, *self._keys(name), *arguments)))

    async def published(self) -> set[Name]:
        """What Redis believes that this host has.

        Raises:
            AdapterStoreAway: it is not known.
        """
        members = await self._do(self._redis.smembers(host_adapters_redis_key(self._host_id)))
        return {of_member(member.decode()) for member in members}

    async def _confirm(self) -> None:
        if await self.published() == self._names():  # else they were lost meanwhile
            await self._do(self._redis.set(host_state_redis_key(self._host_id), self._state()))
            log.info("adapters published")

    def _keys(self, name: Name) -> list[str]:
        tenant, own = name
        return [
            adapters_redis_key(tenant),
            adapter_gone_redis_key(tenant, own),
            host_adapters_redis_key(self._host_id),
            host_state_redis_key(self._host_id),
            adapters_gone_redis_key(tenant),
        ]

    async def _do(self, command: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(2 * TIMEOUT_S):
                return await command
        except (RedisError, OSError, TimeoutError) as error:
            self._presence.on_failed(error)
            raise AdapterStoreAway(
                "the index of adapters does not answer, or takes no writes"
            ) from None


def _decode(data: bytes | None) -> AdapterRecord | None:
    if data is None:
        return None
    try:
        return decode_adapter(data)
    except MalformedMessage:
        return None  # of another release: whatever is put there is newer
