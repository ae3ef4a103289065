"""Session records in Redis, where Redis may be slow, empty or gone: then a session is unknown."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError, ResponseError

from services.frontend import telemetry
from services.frontend.aof import AofRewriter
from services.frontend.core.quotas import TenantLimits
from services.frontend.redis_scripts import FORGET, PUT, SETTLE
from shared.access import RedisAccess
from shared.clock import Clock
from shared.errors import MalformedMessage, NoCapacity
from shared.ids import SessionId, TenantId, new_id
from shared.redis_client import RedisClient
from shared.sessions import (
    SessionRecord,
    decode_record,
    encode_record,
    generation_redis_key,
    session_index_redis_key,
    session_redis_key,
    session_sizes_redis_key,
    tombstone_redis_key,
)
from shared.sparsely import Sparsely

log = logging.getLogger(__name__)

PATIENCE_S = 0.25
AOF_TIMEOUT_S = 5.0
PAUSE_NS = 1_000_000_000  # after a failure, requests do not wait for Redis for this long
GENERATION_S = 2 * 3600  # longer than a turn lasts
TOMBSTONE_S = 24 * 3600  # as long as blocks stay on disk unused


class StoreAway(NoCapacity):
    """Redis did not answer in time."""

    code = "session_store_unavailable"


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A deletion that has not reached everybody.

    Attributes:
        found: there was a record, or a deletion of it that was not settled.
        block_keys: packed, of the blocks that are known to be the session's.
    """

    tenant: TenantId
    session_id: SessionId
    generation: str
    found: bool
    block_keys: str


class SessionStore:
    """Reads and writes that take a quarter of a second at most and never fail a turn."""

    def __init__(
        self, url: str, clock: Clock, expiry_s: int, access: RedisAccess | None = None
    ) -> None:
        self._redis: Any = RedisClient(url, access, timeout_s=PATIENCE_S)
        self._clock = clock
        self.expiry_s = expiry_s
        self._is_up = True
        self._paused_until_ns = 0
        self._refusals = Sparsely()
        self._rewriter = AofRewriter(RedisClient(url, access, timeout_s=AOF_TIMEOUT_S))

    async def close(self) -> None:
        """Give the connections back."""
        await self._rewriter.close()
        await self._redis.aclose()

    async def run(self) -> None:
        """Have deleted records leave Redis's file, for ever."""
        await self._rewriter.run()

    async def get(
        self, tenant: TenantId, session_id: SessionId
    ) -> tuple[SessionRecord | None, str]:
        """The session's record, None if there is none or none can be had in time; and the
        session's generation, to be handed to `put`.
        """
        try:
            record, generation = await self.do("mget", *_redis_keys(tenant, session_id)[:2])
        except StoreAway:
            return None, ""
        return _decode(record), (generation or b"").decode()

    async def read(self, tenant: TenantId, session_id: SessionId) -> SessionRecord | None:
        """The session's record, or None if there is none.

        Raises:
            StoreAway: it cannot be told.
        """
        return _decode(await self.do("get", session_redis_key(tenant, session_id)))

    async def put(self, record: SessionRecord, generation: str, limits: TenantLimits) -> None:
        """Store the record, if that can be done in time, and the session was not deleted since its
        `generation` was read. Above the `limits` of its tenant, that one's least recently used
        records leave.
        """
        tenant, name = record.tenant, record.session_id
        keys = _redis_keys(tenant, name)
        prefix = session_redis_key(tenant, SessionId(""))
        arguments = (generation, encode_record(record), self.expiry_s, name, prefix)
        try:
            await self._eval(PUT, keys, *arguments, limits.sessions, limits.session_bytes)
        except StoreAway:
            return  # the next turn tokenizes anew

    async def forget(self, tenant: TenantId, session_id: SessionId) -> Tombstone:
        """Delete the record, and let no turn that runs now write another. To be repeated until
        `settle`: what is to be deleted elsewhere is kept for so long.

        Raises:
            StoreAway: it cannot be told.
        """
        generation = new_id("gen")
        keys = _redis_keys(tenant, session_id)
        found, block_keys = await self._eval(
            FORGET, keys, generation, GENERATION_S, TOMBSTONE_S, session_id
        )
        self._rewriter.ask()
        return Tombstone(tenant, session_id, generation, bool(found), block_keys.decode())

    async def settle(self, tombstone: Tombstone) -> None:
        """Nobody has anything of the deleted session any more."""
        keys = _redis_keys(tombstone.tenant, tombstone.session_id)
        try:
            await self._eval(SETTLE, keys, tombstone.generation)
        except StoreAway:
            return  # it expires

    async def _eval(self, script: str, keys: list[str], *arguments: str | bytes | int) -> Any:
        return await self.do("eval", script, len(keys), *keys, *arguments)

    async def do(self, *command: str | bytes | int) -> Any:
        """A command's answer.

        Raises:
            StoreAway: there is none in time, or it is no.
        """
        if self._clock.now_ns() < self._paused_until_ns:
            raise StoreAway("the session store does not answer")
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer: Any = await self._redis.execute_command(*command)
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


def _redis_keys(tenant: TenantId, session_id: SessionId) -> list[str]:
    """As `redis_scripts` takes them."""
    return [
        session_redis_key(tenant, session_id),
        generation_redis_key(tenant, session_id),
        tombstone_redis_key(tenant, session_id),
        session_index_redis_key(tenant),
        session_sizes_redis_key(tenant),
    ]


def _decode(data: bytes | None) -> SessionRecord | None:
    if data is None:
        return None
    try:
        return decode_record(data)
    except MalformedMessage:
        return None  # of another release: the session is unknown
