"""Session records in Redis. If Redis is slow, empty or away, sessions are unknown."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import RedisError, ResponseError

from services.frontend.core.limits.quotas import TenantLimits
from services.frontend.observability import telemetry
from services.frontend.sessions.aof import AofRewriter
from services.frontend.sessions.redis import OpenRedis
from services.frontend.sessions.redis_scripts import DELETION_SLOTS, FORGET, PUT, SETTLE
from shared.errors import MalformedMessage, NoCapacity
from shared.ids import HostId, SessionId, TenantId, new_id
from shared.locations import (
    ANYWHERE,
    BLOCKS_MAX,
    KV_HOSTS_KEY,
    decode_lives,
    decode_locations,
    location_redis_key,
)
from shared.owners import owner_key
from shared.runtime.clock import Clock
from shared.runtime.sparsely import Sparsely
from shared.wire.sessions import (
    SessionRecord,
    decode_record,
    deletions_redis_key,
    encode_record,
    session_epoch_redis_key,
    session_mark,
    session_redis_key,
)

log = logging.getLogger(__name__)

PATIENCE_S = 0.25
AOF_TIMEOUT_S = 5.0
LOCATING_MAX = 16  # advisories whose sessions are looked up at once; more are not looked up
PAUSE_NS = 1_000_000_000  # after a failure, requests do not wait for Redis for this long
COUNTER_BYTES = 4  # of deletions
LIVES_NS = 2_000_000_000  # how long hosts' claims of being alive are cached


class StoreAway(NoCapacity):
    """Redis did not answer in time."""

    code = "session_store_unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSession:
    """What Redis knows of a session when its turn comes.

    Attributes:
        epoch: for `SessionStore.put`.
        kv_at: leading blocks by host; `ANYWHERE`, if that is unknown.
    """

    record: SessionRecord | None = None
    epoch: str = ""
    kv_at: dict[HostId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A deletion that is not complete: some hosts may still have blocks.

    Attributes:
        found: there was a record, or a deletion of it that was not settled.
        block_keys: packed, of the blocks that are known to be the session's.
    """

    tenant: TenantId
    session_id: SessionId
    epoch: str
    found: bool
    block_keys: str


class SessionStore:
    """Reads and writes that take a quarter of a second at most and never fail a turn.

    Args:
        open_redis: makes a client; one is for the append-only file, whose commands take longer.
        record_expiry_s: how long an unused session is remembered.
    """

    def __init__(self, open_redis: OpenRedis, clock: Clock, record_expiry_s: int) -> None:
        self._redis = open_redis(PATIENCE_S)
        self._clock = clock
        self.record_expiry_s = record_expiry_s
        self._is_up = True
        self._paused_until_ns = 0
        self._lives: dict[HostId, str] = {}
        self._lives_until_ns = 0
        self._num_locating = 0
        self._refusals = Sparsely()
        self._rewriter = AofRewriter(open_redis(AOF_TIMEOUT_S))

    async def close(self) -> None:
        """Disconnect."""
        await self._rewriter.close()
        await self._redis.aclose()

    async def run(self) -> None:
        """Rewrite Redis's file after deletions, for ever."""
        await self._rewriter.run()

    async def get(self, tenant: TenantId, session_id: SessionId) -> KnownSession:
        """What is known of the session. If Redis does not answer, its KV may be anywhere."""
        record_key = session_redis_key(tenant, session_id)
        record_of = ("MGET", record_key, session_epoch_redis_key(tenant, session_id))
        commands = record_of, *_deletions(tenant, session_id), *self._where(tenant, session_id)
        try:
            stored, own, shared, *located = await self._together(*commands)
        except StoreAway:
            return KnownSession(kv_at={ANYWHERE: BLOCKS_MAX})
        return KnownSession(
            record=_decode(stored[0]),
            epoch=f"{(stored[1] or b'').decode()} {_count(own)} {_count(shared)}",
            kv_at=self._kv_at(located),
        )

    async def locate(self, tenant: TenantId, session_id: SessionId) -> dict[HostId, int]:
        """Leading blocks of the session by host; none if Redis does not answer in time, or many are
        asked for: turns' records come first."""
        if self._num_locating >= LOCATING_MAX:
            return {}
        self._num_locating += 1
        try:
            where = self._where(tenant, session_id)
            return self._kv_at(await self._together(*where, is_needed=False))
        except StoreAway:
            return {}
        finally:
            self._num_locating -= 1

    async def read(self, tenant: TenantId, session_id: SessionId) -> SessionRecord | None:
        """The session's record, or None if there is none.

        Raises:
            StoreAway: Redis does not answer.
        """
        return _decode(await self.do("get", session_redis_key(tenant, session_id)))

    async def put(self, record: SessionRecord, epoch: str, limits: TenantLimits) -> None:
        """Store the record, if that can be done in time, the session was not deleted since its
        `epoch` was read, and no other turn stored one that is as late as this.
        Above the `limits` of its tenant, that one's least recently used records leave.
        """
        tenant, name = record.tenant, record.session_id
        with suppress(StoreAway):  # the next turn tokenizes all of it
            data = encode_record(record)
            await self.keep(PUT, tenant, name, epoch, data, limits, record.num_turns)

    async def keep(
        self,
        script: str,
        tenant: TenantId,
        session_id: SessionId,
        epoch: str,
        data: bytes,
        limits: TenantLimits,
        *more: str | bytes | int,
        is_needed: bool = True,
    ) -> int:
        """Keep something of a session, by a script that begins with `redis_scripts.KEEPING`.
        Answers above 0 if it was.

        Raises:
            StoreAway: Redis does not answer.
        """
        location = location_redis_key(owner_key(tenant, session_id)).rpartition(":")[2]
        of_tenant = limits.sessions, limits.session_bytes
        arguments = (location, epoch, self.record_expiry_s, *of_tenant, data, *more)
        command = ("eval", script, 0, tenant, session_id, *arguments)
        return int(await self.do(*command, is_needed=is_needed))

    async def forget(self, tenant: TenantId, session_id: SessionId) -> Tombstone:
        """Delete the record, and let no turn that runs now write another. To be repeated until
        `settle`: what is to be deleted elsewhere is kept for so long.

        Raises:
            StoreAway: Redis does not answer.
        """
        epoch = new_id("gen")
        command = ("eval", FORGET, 0, tenant, session_id, epoch)
        found, block_keys = await self.do(*command)
        if found:
            self.on_deleted()
        return Tombstone(tenant, session_id, epoch, bool(found), block_keys.decode())

    async def settle(self, tombstone: Tombstone) -> None:
        """The deletion is complete: no host has blocks of the session."""
        of_session = tombstone.tenant, tombstone.session_id
        with suppress(StoreAway):  # it expires
            await self.do("eval", SETTLE, 0, *of_session, tombstone.epoch)

    def on_deleted(self) -> None:
        """Something was deleted: remove it from Redis's file too."""
        self._rewriter.ask()

    async def do(self, *command: str | bytes | int, is_needed: bool = True) -> Any:
        """A command's answer.

        Args:
            is_needed: if it does not come, others do not wait for Redis for a while either.

        Raises:
            StoreAway: there is none in time, or it is no.
        """
        return await self._answered(
            lambda: self._redis.execute_command(*command), is_needed=is_needed
        )

    def _where(self, tenant: TenantId, session_id: SessionId) -> list[tuple[str, ...]]:
        """Commands that read where the session's KV is."""
        location = ("HGETALL", location_redis_key(owner_key(tenant, session_id)))
        is_old = self._clock.now_ns() >= self._lives_until_ns
        return [location, ("HGETALL", KV_HOSTS_KEY)] if is_old else [location]

    def _kv_at(self, answers: list[Any]) -> dict[HostId, int]:
        """Leading blocks by host, from their answers; none where values have another type."""
        located, *claims = answers
        if claims and isinstance(claims[0], dict):
            self._lives = decode_lives(claims[0])
            self._lives_until_ns = self._clock.now_ns() + LIVES_NS
        return decode_locations(located, self._lives) if isinstance(located, dict) else {}

    async def _together(
        self, *commands: tuple[str | int, ...], is_needed: bool = True
    ) -> list[Any]:
        """Answers to commands that read, in one round trip. Where one but the first fails, its
        error is in place of its answer.

        Raises:
            StoreAway: there is none in time, or the first one's is no.
        """

        async def ask() -> list[Any]:
            async with self._redis.pipeline(transaction=False) as pipe:
                for command in commands:
                    pipe.execute_command(*command)
                answers: list[Any] = await pipe.execute(raise_on_error=False)
            if isinstance(answers[0], Exception):
                raise answers[0]
            return answers

        answers: list[Any] = await self._answered(ask, is_needed=is_needed)
        return answers

    async def _answered(self, ask: Callable[[], Awaitable[Any]], *, is_needed: bool = True) -> Any:
        if self._clock.now_ns() < self._paused_until_ns:
            raise StoreAway("the session store does not answer")
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer: Any = await ask()
        except ResponseError as error:  # out of memory, or read-only: what it has can be read
            telemetry.SESSION_STORE_ERRORS.inc()
            if num := self._refusals.hear("refused", self._clock.now_ns()):
                log.warning("session store refuses", extra={"error": str(error), "num": num})
            raise StoreAway(f"the session store refuses: {error}") from None
        except (RedisError, OSError, TimeoutError) as error:
            telemetry.SESSION_STORE_ERRORS.inc()
            if is_needed:
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


def _deletions(tenant: TenantId, session_id: SessionId) -> list[tuple[str | int, ...]]:
    """Commands whose answers are counters of deletions, see `redis_scripts.ACCOUNTING`: of the
    tenant, and of those without one of their own.
    """
    start = COUNTER_BYTES * (int(session_mark(session_id)[:8], 16) % DELETION_SLOTS)
    of = (tenant, TenantId(""))
    end = start + COUNTER_BYTES - 1
    return [("GETRANGE", deletions_redis_key(each), start, end) for each in of]


def _count(answer: Any) -> int:
    return int.from_bytes(answer) if isinstance(answer, bytes) else 0


def _decode(data: bytes | None) -> SessionRecord | None:
    if data is None:
        return None
    try:
        return decode_record(data)
    except MalformedMessage:
        return None  # of another release: the session is unknown
