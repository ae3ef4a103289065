"""Where sessions' next turns are expected, as the scheduler told: such a turn can be sent to its
worker at once.
"""

from collections import OrderedDict
from dataclasses import dataclass

from shared.ids import ModelId, SessionId, TenantId, WorkerId
from shared.messages import SessionPlaced

PLACES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class _Place:
    worker_id: WorkerId
    model_id: ModelId
    expires_at_ns: int


class Places:
    """What was told last of each session. It may be out of date: the scheduler decides."""

    def __init__(self) -> None:
        self._places: OrderedDict[tuple[TenantId, SessionId], _Place] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def on_placed(self, placed: SessionPlaced, now_ns: int) -> None:
        """A place is kept; of too many, those told of first are forgotten."""
        key = (placed.tenant, placed.session_id)
        expires_at_ns = now_ns + placed.expires_in_ns
        self._places[key] = _Place(placed.worker_id, placed.model_id, expires_at_ns)
        self._places.move_to_end(key)
        if len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)

    def take(
        self, tenant: TenantId, session_id: SessionId | None, model_id: ModelId, now_ns: int
    ) -> WorkerId | None:
        """The worker that keeps a place for this turn, which uses it up; None: nobody is known."""
        if session_id is None:
            return None
        place = self._places.pop((tenant, session_id), None)
        if place is None or place.model_id != model_id or now_ns >= place.expires_at_ns:
            return None
        return place.worker_id
