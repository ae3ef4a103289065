"""Redis, as far as sessions need it: records and hashes that may be lost, late, refused, or old."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loadtest.sim.timeline import MS, Action
from loadtest.world.process import Process
from shared.ids import HostId, SessionId, TenantId
from shared.locations import (
    ANYWHERE,
    BLOCKS_MAX,
    KV_HOSTS_KEY,
    decode_lives,
    decode_locations,
    location_redis_key,
)
from shared.owners import owner_key

ANSWER_NS = MS
PATIENCE_NS = 250 * MS


@dataclass(frozen=True, slots=True)
class Record:
    """What others need of a session's record, as `shared.wire.sessions` has it."""

    block_keys: str
    num_computed: int
    num_turns: int


class Redis:
    """Attributes:
    is_up: it answers.
    takes_writes: it is not full.
    hashes: by key.
    num_refused: records that came behind another one of the same turn.
    """

    def __init__(self) -> None:
        self.is_up = True
        self.takes_writes = True
        self.num_refused = 0
        self.hashes: dict[str, dict[str, str]] = {}
        self._records: dict[tuple[TenantId, SessionId], Record] = {}
        self._snapshot = (dict(self._records), dict(self.hashes))

    def wipe(self) -> None:
        """Everything is gone."""
        self._records.clear()
        self.hashes.clear()

    def save(self) -> None:
        """Take a snapshot."""
        hashes = {key: dict(fields) for key, fields in self.hashes.items()}
        self._snapshot = (dict(self._records), hashes)

    def go_back(self) -> None:
        """It restarts with its last snapshot."""
        records, hashes = self._snapshot
        self._records = dict(records)
        self.hashes = {key: dict(fields) for key, fields in hashes.items()}

    def locations(self, tenant: TenantId, session_id: SessionId | None) -> dict[HostId, int]:
        """Leading blocks of the session by host, as a frontend learns them with its record."""
        if session_id is None:
            return {}
        if not self.is_up:
            return {ANYWHERE: BLOCKS_MAX}
        fields = self.raw(location_redis_key(owner_key(tenant, session_id)))
        claims = self.hashes.get(KV_HOSTS_KEY, {})  # those of other hosts do not matter
        said = {name: claims[name.decode()].encode() for name in fields if name.decode() in claims}
        return decode_locations(fields, decode_lives(said))

    def record(self, tenant: TenantId, session_id: SessionId | None) -> Record | None:
        """A session's record, as a frontend finds it when a turn comes."""
        return self._records.get((tenant, session_id)) if self.is_up and session_id else None

    def raw(self, key: str) -> dict[bytes, bytes]:
        """The fields of a hash as they come from it."""
        return {name.encode(): value.encode() for name, value in self.hashes.get(key, {}).items()}

    def read_hash(
        self, process: Process, key: str, then: Callable[[dict[str, str] | None], None]
    ) -> None:
        """The fields of a hash, or None if that cannot be had in time."""
        if not self.is_up:
            process.later(PATIENCE_NS, lambda: then(None))
            return
        fields = dict(self.hashes.get(key, {}))
        process.later(ANSWER_NS, lambda: then(fields))

    def write_hashes(
        self,
        process: Process,
        field: str,
        before: tuple[str, str] | None,
        values: Mapping[str, str | None],
        then: Action,
        on_failed: Action,
    ) -> None:
        """Set this field in each of these hashes, or remove it, in one step, if it has this value
        `before` in this one; the caller may not receive the confirmation.
        """
        can_be = self.is_up and self.takes_writes
        if before is not None:
            can_be &= self.hashes.get(before[0], {}).get(field) == before[1]
        if not can_be:
            process.later(ANSWER_NS if self.is_up else PATIENCE_NS, on_failed)
            return
        for key, value in values.items():
            fields = self.hashes.setdefault(key, {})
            fields.pop(field, None)
            if value is not None:
                fields[field] = value
        process.later(ANSWER_NS, lambda: then() if self.is_up else on_failed())

    def read(
        self,
        process: Process,
        tenant: TenantId,
        session_id: SessionId,
        on_record: Callable[[Record | None], None],
    ) -> None:
        """The session's record, or None if there is none or none can be had in time."""
        if not self.is_up:
            process.later(PATIENCE_NS, lambda: on_record(None))
            return
        record = self._records.get((tenant, session_id))
        process.later(ANSWER_NS, lambda: on_record(record))

    def write(
        self,
        process: Process,
        tenant: TenantId,
        session_id: SessionId,
        record: Record,
        then: Callable[[], None],
    ) -> None:
        """Store the record, if that can be done in time and no other turn that began with the same
        record has stored its own.
        """
        stored = self._records.get((tenant, session_id))
        is_late = stored is not None and stored.num_turns >= record.num_turns
        if self.is_up and self.takes_writes and not is_late:
            self._records[(tenant, session_id)] = record
        self.num_refused += is_late
        process.later(ANSWER_NS if self.is_up else PATIENCE_NS, then)
