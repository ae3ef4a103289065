"""What a request may leave behind of its session: nothing any more once the session was deleted."""

from dataclasses import dataclass
from weakref import WeakSet

from shared.ids import SessionId, TenantId


@dataclass(slots=True, eq=False, weakref_slot=True)
class OpenSession:
    """One request's, from before it read the session's record until nobody holds it any more.

    Attributes:
        generation: of the session when the record was read, see `shared.sessions`.
        is_forgotten: the session was deleted since.
    """

    tenant: TenantId
    session_id: SessionId
    generation: str = ""
    is_forgotten: bool = False


class OpenSessions:
    """Every claim that a request of this frontend holds."""

    def __init__(self) -> None:
        self._claims: WeakSet[OpenSession] = WeakSet()

    def make(self, tenant: TenantId, session_id: SessionId) -> OpenSession:
        """The claim of a request that begins now."""
        claim = OpenSession(tenant, session_id)
        self._claims.add(claim)
        return claim

    def forget(self, tenant: TenantId, session_id: SessionId) -> None:
        """The session was deleted."""
        for claim in self._claims:
            if (claim.tenant, claim.session_id) == (tenant, session_id):
                claim.is_forgotten = True
