"""Sessions that requests have open: once a session is deleted, they may store nothing of it."""

from dataclasses import dataclass
from weakref import WeakSet

from shared.ids import SessionId, TenantId


@dataclass(slots=True, eq=False, weakref_slot=True)
class OpenSession:
    """A session as one request has it open, from before it reads the session's record.

    Attributes:
        epoch: of the session when the record was read, see `shared.wire.sessions`.
        is_forgotten: the session was deleted since.
    """

    tenant: TenantId
    session_id: SessionId
    epoch: str = ""
    is_forgotten: bool = False


class OpenSessions:
    """Every session that a request of this frontend has open."""

    def __init__(self) -> None:
        self._open: WeakSet[OpenSession] = WeakSet()

    def make(self, tenant: TenantId, session_id: SessionId) -> OpenSession:
        """Open the session for a request. It is closed when the last reference is dropped."""
        opened = OpenSession(tenant, session_id)
        self._open.add(opened)
        return opened

    def forget(self, tenant: TenantId, session_id: SessionId) -> None:
        """The session was deleted."""
        for opened in self._open:
            if (opened.tenant, opened.session_id) == (tenant, session_id):
                opened.is_forgotten = True
