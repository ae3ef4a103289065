"""What the tracker remembers of one advisory."""

from dataclasses import dataclass, field

from services.tracker.core.levels import Whose
from shared.ids import FrontendId, HostId, ModelId, SessionId, TenantId, WorkerId
from shared.messages import AdapterRef, AdvisoryKey, AdvisoryLife, AgentPrefix, ExpectSession

SessionKey = tuple[TenantId, SessionId]
ARRIVAL_SLACK_NS = 1_000_000_000  # told again when the turn is expected so much sooner or later


@dataclass(slots=True, eq=False)
class Record:
    """One life of a session's advisory: expected, then placed, then over for one of five reasons.

    Attributes:
        over_at_ns: when it was used, late, expired, overtaken or invalidated; None while it lives.
        is_asking: the scheduler has been asked for a place and not answered yet.
        ask_at_ns: when to ask for a place again, unless asking.
        arrives_at_ns: when its turn is expected at the earliest; 0: at any time.
        kv_at: leading blocks of the session by host, by its last advisory.
        agent, workflow_id: who will ask the turn, in which run; empty: not said.
        is_own: nobody has announced it but the tracker itself, from what agents do.
        frontend_id, place: who took its first advisory, and where that came from.
        sender: in whose order it stands; None: in nobody's.
        chance: of its turn's coming, when that was last announced.
        is_acted_on: the scheduler is asked for a place; else it is only seen what becomes of it.
        is_dated: somebody said when its turn comes.
        came_after_all: its turn came after it had expired.
        prefix: what stands for its session, which nobody knows yet; None: it is known.
        told_*: what the scheduler was told when last asked.
        due_at_ns: when this record is next looked at.
        trace: the span of its last advisory that is traced; empty: none is.
    """

    key: SessionKey
    created_at_ns: int
    expires_at_ns: int
    model_id: ModelId | None
    priority: int
    adapter: AdapterRef | None = None
    arrives_at_ns: int = 0
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
    told_arrives_at_ns: int = 0
    told_prefix: AgentPrefix | None = None
    due_at_ns: int | None = None
    kv_at: dict[HostId, int] = field(default_factory=dict)
    agent: str = ""
    workflow_id: str = ""
    frontend_id: FrontendId | None = None
    place: str = ""
    sender: tuple[str, str, str] | None = None
    chance: float = 1.0
    is_acted_on: bool = True
    is_dated: bool = False
    came_after_all: bool = False
    is_own: bool = False
    prefix: AgentPrefix | None = None
    trace: str = ""

    @property
    def whose(self) -> Whose:
        """Among whose advisories it counts: its application is the agent, else the model."""
        tenant, session_id = self.key
        return Whose(tenant, self.agent or self.model_id or "", session_id)

    @property
    def wire_key(self) -> AdvisoryKey:
        tenant, session_id = self.key
        return AdvisoryKey(tenant=tenant, session_id=session_id)

    @property
    def is_told(self) -> bool:
        """Whether the scheduler knows what matters; a later expiry can wait until the earlier one
        is near."""
        told = self.told_model_id, self.told_adapter, self.told_prefix
        is_in_time = abs(self.told_arrives_at_ns - self.arrives_at_ns) <= ARRIVAL_SLACK_NS
        is_high = self.told_priority >= self.priority
        return is_high and is_in_time and told == (self.model_id, self.adapter, self.prefix)

    def tell(self, now_ns: int) -> ExpectSession:
        """What to ask the scheduler, which then knows it."""
        tenant, session_id = self.key
        self.is_asking = True
        self.told_model_id, self.told_adapter = self.model_id, self.adapter
        self.told_priority = self.priority
        self.told_expires_at_ns = self.expires_at_ns
        self.told_arrives_at_ns = self.arrives_at_ns
        self.told_prefix = self.prefix
        return ExpectSession(
            session_id=session_id,
            tenant=tenant,
            model_id=self.model_id,
            priority=self.priority,
            expires_in_ns=self.expires_at_ns - now_ns,
            adapter=self.adapter,
            arrives_in_ns=max(self.arrives_at_ns - now_ns, 0),
            kv_at=self.kv_at,
            prefix=self.prefix,
            trace=self.trace,
        )
