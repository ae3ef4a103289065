"""A kvstore publishes its sessions' KV locations in Redis: the production core, with delays."""

from loadtest.sim.timeline import SECOND
from loadtest.world.process import Process
from loadtest.world.redis import Redis
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


class Telling:
    """As the kvstore's own shell does: one question or update at a time, a check now and then."""

    def __init__(
        self, process: Process, redis: Redis, host_id: HostId, locations: Locations
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
            self._redis.read_hash(self._process, KV_HOSTS_KEY, self._on_claims)

    def _on_claims(self, claims: dict[str, str] | None) -> None:
        self._is_busy = False
        if claims is None:
            return
        self._num_lives += 1
        said = claims.get(self._host_id)
        claim = None if said is None else decode_claim(said.encode())
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
        self._redis.write_hashes(
            self._process, self._host_id, before, published, self._on_told, self._on_failed
        )

    def _on_told(self) -> None:
        self._is_busy = False
        self._locations.on_sent()
        self._tell()

    def _on_failed(self) -> None:
        self._is_busy = False
        self._locations.on_failed()  # until the next check
