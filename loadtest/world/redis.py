"""Redis, as far as sessions need it: records that may be lost, late, or refused."""

from collections.abc import Callable
from dataclasses import dataclass

from loadtest.world.process import Process
from loadtest.world.timeline import MS
from shared.ids import SessionId, TenantId

ANSWER_NS = MS
PATIENCE_NS = 250 * MS


@dataclass(frozen=True, slots=True)
class Record:
    """What the kvstore needs of a session's record."""

    block_keys: str


class Redis:
    """Attributes:
    is_up: it answers.
    takes_writes: it is not full.
    """

    def __init__(self) -> None:
        self.is_up = True
        self.takes_writes = True
        self._records: dict[tuple[TenantId, SessionId], Record] = {}

    def wipe(self) -> None:
        """Everything is gone."""
        self._records.clear()

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
        """Store the record, if that can be done in time."""
        if self.is_up and self.takes_writes:
            self._records[(tenant, session_id)] = record
        process.later(ANSWER_NS if self.is_up else PATIENCE_NS, then)
