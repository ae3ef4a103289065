"""Redis: which host holds which block, and sessions' records. An index: what it loses is published
again, and while it is away nothing fails here.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Any

from redis.exceptions import RedisError

from services.kvstore.redis_link import Presence, connect
from services.kvstore.session_count import SessionCount
from shared.access import RedisAccess
from shared.blocks import BlockKey
from shared.errors import MalformedMessage
from shared.ids import HostId, SessionId, TenantId
from shared.sessions import (
    SessionRecord,
    block_redis_key,
    decode_record,
    host_blocks_redis_key,
    session_redis_key,
)
from shared.tasks import end_if_cancelled

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 2.0
CHUNK = 1000


class RedisIndex:
    """Publishes this host's blocks.

    Changes are queued and sent by `run`, in order. Whenever Redis was away, and whenever its set of
    this host's blocks is not as large as it should be (it was wiped), everything is compared and
    published anew.

    Args:
        held: the blocks on this host's disk at this moment; every change of them is also told by
            `add` or `remove` before anything else runs.
        ttl_s: how long an entry outlives its last `add`.
    """

    def __init__(
        self,
        url: str,
        host_id: HostId,
        ttl_s: float,
        held: Callable[[], Collection[BlockKey]],
        access: RedisAccess | None = None,
    ) -> None:
        self._redis: Any = connect(url, access)
        self._host_id = host_id
        self._host_key = host_blocks_redis_key(host_id)
        self._ttl_s = math.ceil(ttl_s)
        self._held = held
        self._changes: dict[BlockKey, bool] = {}
        self._wake = asyncio.Event()
        self._presence = Presence("Redis is away")
        self._is_in_step = False
        self._checked_at_s = -math.inf
        self._sessions = SessionCount(self._redis)

    async def close(self) -> None:
        """Send what is queued, or everything if a stop cut that off, if Redis is there, and
        disconnect."""
        if self._presence.is_up:
            try:
                if not self._is_in_step:
                    await self._publish_all()
                await self._send_changes()
            except (RedisError, OSError) as error:
                self._failed(error)
        await self._redis.aclose()

    def add(self, keys: Sequence[BlockKey]) -> None:
        """This host holds these blocks."""
        self._changes.update(dict.fromkeys(keys, True))
        self._wake.set()

    def remove(self, keys: Sequence[BlockKey]) -> None:
        """This host no longer holds these blocks."""
        self._changes.update(dict.fromkeys(keys, False))
        self._wake.set()

    async def run(self) -> None:
        """Keep Redis in step and count its sessions, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_in_step())
            tasks.create_task(self._sessions.run())

    async def record(self, tenant: TenantId, session_id: SessionId) -> SessionRecord | None:
        """A session's record, or None: unknown, of another release, or Redis is away."""
        try:
            data = await self._redis.get(session_redis_key(tenant, session_id))
        except (RedisError, OSError) as error:
            self._failed(error)
            return None
        return _decode(data)

    async def count_sessions(self) -> int:
        """Session records in Redis when they were last counted. Asking makes no load."""
        return self._sessions.num_sessions

    async def _keep_in_step(self) -> None:
        while True:
            try:
                await self._step()
                end_if_cancelled()
                self._presence.on_answered()
            except (RedisError, OSError) as error:
                end_if_cancelled()  # then it says nothing about Redis
                self._failed(error)
                await asyncio.sleep(CHECK_INTERVAL_S)
                continue
            try:
                async with asyncio.timeout(CHECK_INTERVAL_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _step(self) -> None:
        if not self._is_in_step:
            await self._publish_all()
        num_held = await self._send_changes()
        now_s = time.monotonic()
        if now_s - self._checked_at_s >= CHECK_INTERVAL_S:
            self._checked_at_s = now_s
            if await self._num_published() != num_held:
                await self._publish_all()

    async def _num_published(self) -> int:
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.expire(self._host_key, self._ttl_s)
            pipe.scard(self._host_key)
            _, num_published = await pipe.execute()
        return int(num_published)

    async def _publish_all(self) -> None:
        self._is_in_step = False
        self._changes.clear()
        held = set(self._held())
        published = {
            BlockKey(bytes.fromhex(member.decode()))
            for member in await self._redis.smembers(self._host_key)
        }
        await self._send(held, published - held)
        self._is_in_step = True
        log.info(
            "blocks published", extra={"num_blocks": len(held), "num_stale": len(published - held)}
        )

    async def _send_changes(self) -> int:
        """How many blocks Redis should list afterwards."""
        self._wake.clear()
        changes, self._changes = self._changes, {}
        num_held = len(self._held())
        try:
            await self._send(
                [key for key, is_held in changes.items() if is_held],
                [key for key, is_held in changes.items() if not is_held],
            )
        except BaseException:  # cut off by a stop: `close` sends them, and what came since
            self._changes = changes | self._changes
            raise
        return num_held

    async def _send(self, added: Collection[BlockKey], removed: Collection[BlockKey]) -> None:
        for is_held, keys in ((True, iter(added)), (False, iter(removed))):
            while chunk := [key.hex() for key in islice(keys, CHUNK)]:
                async with self._redis.pipeline(transaction=False) as pipe:
                    for key in chunk:
                        if is_held:
                            pipe.sadd(block_redis_key(key), self._host_id)
                            pipe.expire(block_redis_key(key), self._ttl_s)
                        else:
                            pipe.srem(block_redis_key(key), self._host_id)
                    (pipe.sadd if is_held else pipe.srem)(self._host_key, *chunk)
                    pipe.expire(self._host_key, self._ttl_s)
                    await pipe.execute()

    def _failed(self, error: Exception) -> None:
        self._presence.on_failed(error)
        self._is_in_step = False


def _decode(data: bytes | None) -> SessionRecord | None:
    if data is None:
        return None
    try:
        return decode_record(data)
    except MalformedMessage:
        return None
