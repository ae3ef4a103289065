"""What the tracker remembers of one advisory."""

from dataclasses import dataclass

from shared.ids import ModelId, SessionId, TenantId, WorkerId
from shared.messages import AdapterRef, AdvisoryKey, AdvisoryLife

SessionKey = tuple[TenantId, SessionId]


@dataclass(slots=True, eq=False)
class Record:
    """One life of a session's advisory: expected, then placed, then over for one of four reasons.

    Attributes:
        over_at_ns: when it was used, late, expired or invalidated; None while it lives.
        is_asking: the scheduler has been asked for a place and not answered yet.
        ask_at_ns: when to ask for a place again, unless asking.
        told_*: what the scheduler was told when last asked.
        due_at_ns: when this record is next looked at.
    """

    key: SessionKey
    created_at_ns: int
    expires_at_ns: int
    model_id: ModelId | None
    priority: int
    adapter: AdapterRef | None = None
    state: AdvisoryLife = "expected"
    worker_id: WorkerId | None = None
    num_merged: int = 0
    over_at_ns: int | None = None
    is_asking: bool = False
    ask_at_ns: int = 0
    told_model_id: ModelId | None = None
    told_adapter: AdapterRef | None = None
    told_priority: int = 0
    told_expires_at_ns: int = 0
    due_at_ns: int | None = None

    @property
    def wire_key(self) -> AdvisoryKey:
        tenant, session_id = self.key
        return AdvisoryKey(tenant=tenant, session_id=session_id)

    @property
    def is_told(self) -> bool:
        """Whether the scheduler knows what matters; a later expiry can wait until the earlier one
        is near."""
        told = self.told_model_id, self.told_adapter
        return self.told_priority >= self.priority and told == (self.model_id, self.adapter)
