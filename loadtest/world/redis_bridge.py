"""The simulated Redis server, as the simulation's own frontends use it."""

from collections.abc import Callable
from contextlib import suppress

from redis.exceptions import ResponseError

from loadtest.sim.redis import RedisServer
from loadtest.sim.timeline import SECOND
from loadtest.world.process import Process
from loadtest.world.redis import ANSWER_NS, PATIENCE_NS, Record, Redis
from shared.ids import HostId, ModelId, SessionId, TenantId
from shared.locations import (
    ANYWHERE,
    BLOCKS_MAX,
    KV_HOSTS_KEY,
    decode_lives,
    decode_locations,
    location_redis_key,
)
from shared.owners import owner_key
from shared.wire.sessions import (
    SessionRecord,
    TextMark,
    decode_record,
    encode_record,
    session_redis_key,
)

NO_TEXT = TextMark.of("")


class ServerRedis(Redis):
    """Records and locations in a `RedisServer`.

    Attributes:
        server: that kvstores use, too.
    """

    def __init__(self, server: RedisServer, model_id: ModelId, fingerprint: str) -> None:
        super().__init__()
        self.server = server
        self._model = model_id, fingerprint

    def locations(self, tenant: TenantId, session_id: SessionId | None) -> dict[HostId, int]:
        if session_id is None:
            return {}
        if not self.server.is_up:
            return {ANYWHERE: BLOCKS_MAX}
        fields = self.server.hash_of(location_redis_key(owner_key(tenant, session_id)))
        claims = self.server.hash_of(KV_HOSTS_KEY)  # those of other hosts do not matter
        lives = decode_lives({name: claims[name] for name in fields if name in claims})
        return decode_locations(fields, lives)

    def record(self, tenant: TenantId, session_id: SessionId | None) -> Record | None:
        if not self.server.is_up or session_id is None:
            return None
        data = self.server.execute("GET", session_redis_key(tenant, session_id))
        if data is None:
            return None
        found = decode_record(data)
        return Record(found.block_keys, found.num_computed, found.num_turns)

    def write(
        self,
        process: Process,
        tenant: TenantId,
        session_id: SessionId,
        record: Record,
        then: Callable[[], None],
    ) -> None:
        stored = self.record(tenant, session_id)
        is_late = stored is not None and stored.num_turns >= record.num_turns
        if self.server.is_up and not is_late:
            model_id, fingerprint = self._model
            full = SessionRecord(
                session_id=session_id, tenant=tenant, model_id=model_id, fingerprint=fingerprint,
                tokens="", block_keys=record.block_keys, prompt=NO_TEXT, reply=NO_TEXT,
                stripped_reply=NO_TEXT, num_tokens=0, num_turns=record.num_turns,
                last_used=process.wall_ns / SECOND, expires=process.wall_ns / SECOND,
                num_computed=record.num_computed,
            )  # fmt: skip
            with suppress(ResponseError):  # it is full
                self.server.execute(
                    "SET", session_redis_key(tenant, session_id), encode_record(full)
                )
        self.num_refused += is_late
        process.later(ANSWER_NS if self.server.is_up else PATIENCE_NS, then)
