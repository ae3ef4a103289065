"""Where sessions' next turns are expected, as the scheduler told: such a turn can be sent to its
worker at once.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from shared.ids import HostId, ModelId, SessionId, TenantId, WorkerId
from shared.locations import known_places, worth_keeping
from shared.messages import SessionPlaced

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
        """Where the session's KV is, by what the scheduler knew and by what others tell."""
        told = known_places(kv_at) if self.kv_at else kv_at
        return dict(self.kv_at) | {
            host_id: max(num, self.kv_at.get(host_id, 0)) for host_id, num in told.items()
        }


class Assignments:
    """What was told last of each session. It may be out of date: the scheduler decides."""

    def __init__(self) -> None:
        self._places: OrderedDict[tuple[TenantId, SessionId], Assignment] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def on_placed(self, placed: SessionPlaced, now_ns: int) -> None:
        """A place is kept; of too many, those told of first are forgotten."""
        key = (placed.tenant, placed.session_id)
        expires_at_ns = now_ns + placed.expires_in_ns
        kv_at = known_places(worth_keeping(placed.kv_at))
        self._places[key] = Assignment(placed.worker_id, placed.model_id, expires_at_ns, kv_at)
        self._places.move_to_end(key)
        if len(self._places) > ASSIGNMENTS_MAX:
            self._places.popitem(last=False)

    def take(
        self, tenant: TenantId, session_id: SessionId | None, model_id: ModelId, now_ns: int
    ) -> Assignment | None:
        """What is kept for this turn, which uses it up; None: nothing is known."""
        if session_id is None:
            return None
        place = self._places.pop((tenant, session_id), None)
        if place is None or place.model_id != model_id or now_ns >= place.expires_at_ns:
            return None
        return place
