"""A kvstore publishes its sessions' KV locations in Redis: the production core, with delays."""

from collections.abc import Mapping
from functools import partial

from loadtest.sim.process import Process
from loadtest.sim.redis import RedisServer
from loadtest.sim.timeline import MS, SECOND
from services.kvstore.core import Locations
from shared.ids import HostId
from shared.locations import (
    KV_HOSTS_KEY,
    decode_claim,
    encode_claim,
    encode_location,
    location_redis_key,
)

CHECK_NS = 2 * SECOND
ANSWER_NS, PATIENCE_NS = MS, 250 * MS


class Telling:
    """As the kvstore's own shell does: one question or update at a time, a check now and then."""

    def __init__(
        self, process: Process, redis: RedisServer, host_id: HostId, locations: Locations
    ) -> None:
        self._process = process
        self._redis = redis
        self._host_id = host_id
        self._locations = locations
        self._is_busy = False
        self._num_lives = 0
        self._check()

    def look(self) -> None:
        """Something may have changed on disk."""
        if self._locations.has_news and not self._is_busy:
            self._tell()

    def _check(self) -> None:
        """Now, and again and again."""
        self._process.later(CHECK_NS, self._check)
        if not self._is_busy:
            self._is_busy = True
            if not self._redis.is_up:
                self._process.later(PATIENCE_NS, partial(self._on_claims, None))
                return
            claims = self._redis.hash_of(KV_HOSTS_KEY)
            self._process.later(ANSWER_NS, partial(self._on_claims, claims))

    def _on_claims(self, claims: dict[bytes, bytes] | None) -> None:
        self._is_busy = False
        if claims is None:
            return
        self._num_lives += 1
        claim = decode_claim(claims.get(self._host_id.encode()))
        life = f"{self._process.life}-{self._num_lives}"
        self._locations.on_checked(claim, life)
        self._tell()

    def _tell(self) -> None:
        if (update := self._locations.take()) is None:
            return  # so few sessions are looked at in one go
        published: dict[str, str | None] = {
            location_redis_key(owner): encode_location(update.claim.life, num) if num else None
            for owner, num in update.sessions.items()
        }
        published[KV_HOSTS_KEY] = encode_claim(update.claim)
        before = None if update.before is None else (KV_HOSTS_KEY, encode_claim(update.before))
        self._is_busy = True
        self._write(before, published)

    def _write(self, before: tuple[str, str] | None, values: Mapping[str, str | None]) -> None:
        """Set the host's field in each of these hashes, or remove it, in one step, if it has this
        value `before` in this one; the confirmation may be lost.
        """
        redis, later, host_id = self._redis, self._process.later, self._host_id
        can_be = redis.is_up and redis.takes_writes
        if can_be and before is not None:
            can_be = redis.execute("HGET", before[0], host_id) == before[1].encode()
        if not can_be:
            later(ANSWER_NS if redis.is_up else PATIENCE_NS, self._on_failed)
            return
        for key, value in values.items():
            if value is None:
                redis.execute("HDEL", key, host_id)
            else:
                redis.execute("HSET", key, host_id, value)
        later(ANSWER_NS, lambda: self._on_told() if redis.is_up else self._on_failed())

    def _on_told(self) -> None:
        self._is_busy = False
        self._locations.on_sent()
        self._tell()

    def _on_failed(self) -> None:
        self._is_busy = False
        self._locations.on_failed()  # until the next check
