"""Workers that the scheduler has assigned to sessions' next turns: such a turn is sent to its
worker at once.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from shared.ids import HostId, ModelId, SessionId, TenantId, WorkerId
from shared.locations import known_places, worth_keeping
from shared.wire.messages import SessionPlaced

ASSIGNMENTS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Assignment:
    """Attributes:
    kv_at: leading blocks of the session by host, as far as the scheduler knows.
    """

    worker_id: WorkerId
    model_id: ModelId
    expires_at_ns: int
    kv_at: Mapping[HostId, int]

    def located(self, kv_at: Mapping[HostId, int]) -> dict[HostId, int]:
        """Where the session's KV is: what the scheduler knew, joined with `kv_at`."""
        known = known_places(kv_at) if self.kv_at else kv_at
        return dict(self.kv_at) | {
            host_id: max(num, self.kv_at.get(host_id, 0)) for host_id, num in known.items()
        }


class Assignments:
    """The latest assignment of each session. It may be out of date: the scheduler decides."""

    def __init__(self) -> None:
        self._assignments: OrderedDict[tuple[TenantId, SessionId], Assignment] = OrderedDict()

    def __len__(self) -> int:
        return len(self._assignments)

    def on_placed(self, placed: SessionPlaced, now_ns: int) -> None:
        """Keep an assignment; of too many, the oldest are dropped."""
        key = (placed.tenant, placed.session_id)
        expires_at_ns = now_ns + placed.expires_in_ns
        kv_at = known_places(worth_keeping(placed.kv_at))
        self._assignments[key] = Assignment(placed.worker_id, placed.model_id, expires_at_ns, kv_at)
        self._assignments.move_to_end(key)
        if len(self._assignments) > ASSIGNMENTS_MAX:
            self._assignments.popitem(last=False)

    def take(
        self, tenant: TenantId, session_id: SessionId | None, model_id: ModelId, now_ns: int
    ) -> Assignment | None:
        """Remove and return the assignment for this turn, if it is still good."""
        if session_id is None:
            return None
        found = self._assignments.pop((tenant, session_id), None)
        if found is None or found.model_id != model_id or now_ns >= found.expires_at_ns:
            return None
        return found
