"""The tracker's record of one advisory."""

from dataclasses import dataclass, field

from services.tracker.core.levels import HintSource
from shared.ids import FrontendId, HostId, ModelId, SessionId, TenantId, WorkerId
from shared.wire.messages import (
    AdapterRef,
    AdvisoryKey,
    AdvisoryLife,
    AgentPrefix,
    ExpectSession,
    HintPayer,
)

SessionKey = tuple[TenantId, SessionId]
ARRIVAL_SLACK_NS = 1_000_000_000  # a smaller change of the arrival time is not sent


@dataclass(slots=True)
class Origin:
    """Where an advisory came from.

    Attributes:
        agent, workflow_id: the agent that will send the turn, and its run; empty: unknown.
        frontend_id, place: the frontend that took the first advisory, and its sender's address.
        payer: whose account it was charged to.
        sender: the sender in whose order the advisory is (`order.py`); None: no order.
        is_dated: an advisory named the arrival time.
        has_kv: the session had KV at the first advisory.
        is_own: no client announced the turn; the tracker expects it from what agents do.
    """

    agent: str = ""
    workflow_id: str = ""
    frontend_id: FrontendId | None = None
    place: str = ""
    payer: HintPayer = "place"
    sender: tuple[str, str, str] | None = None
    is_dated: bool = False
    has_kv: bool = False
    is_own: bool = False


@dataclass(slots=True)
class SchedulerRequest:
    """What the scheduler was last asked for an advisory.

    Attributes:
        is_pending: it has not answered yet.
        ask_at_ns: when to ask again, unless pending.
    """

    is_pending: bool = False
    ask_at_ns: int = 0
    model_id: ModelId | None = None
    adapter: AdapterRef | None = None
    priority: int = 0
    expires_at_ns: int = 0
    arrives_at_ns: int = 0
    prefix: AgentPrefix | None = None


@dataclass(slots=True, eq=False)
class Record:
    """One advisory of a session: expected, then placed, then over for one of five reasons.

    Attributes:
        over_at_ns: when it was used, late, expired, overtaken or invalidated; None while it lives.
        arrives_at_ns: earliest expected arrival of its turn; 0: unknown.
        kv_at: leading blocks of the session by host, by its last advisory.
        chance: probability that the turn comes, as of its last advisory.
        is_acted_on: the scheduler is asked for a reservation; else only the outcome is tracked.
        came_after_expiry: its turn came after it had expired.
        prefix: the agent's prompt prefix, in place of a session that is not known yet.
        due_at_ns: when this record is next looked at.
        trace: the span of its last traced advisory; empty: none.
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
    due_at_ns: int | None = None
    kv_at: dict[HostId, int] = field(default_factory=dict)
    chance: float = 1.0
    is_acted_on: bool = True
    came_after_expiry: bool = False
    prefix: AgentPrefix | None = None
    trace: str = ""
    origin: Origin = field(default_factory=Origin)
    request: SchedulerRequest = field(default_factory=SchedulerRequest)

    @property
    def source(self) -> HintSource:
        """The statistics that it counts in: its application is the agent, else the model."""
        tenant, session_id = self.key
        application = self.origin.agent or self.model_id or ""
        return HintSource(tenant, application, session_id, self.origin.has_kv)

    @property
    def wire_key(self) -> AdvisoryKey:
        tenant, session_id = self.key
        return AdvisoryKey(tenant=tenant, session_id=session_id)

    @property
    def is_up_to_date(self) -> bool:
        """Whether the scheduler knows what matters; a later expiry can wait until the earlier one
        is near."""
        asked = self.request
        is_in_time = abs(asked.arrives_at_ns - self.arrives_at_ns) <= ARRIVAL_SLACK_NS
        is_high = asked.priority >= self.priority
        is_same = (asked.model_id, asked.adapter, asked.prefix) == (
            self.model_id, self.adapter, self.prefix,
        )  # fmt: skip
        return is_high and is_in_time and is_same

    def ask(self, now_ns: int) -> ExpectSession:
        """The request to the scheduler, which is then up to date."""
        tenant, session_id = self.key
        self.request = SchedulerRequest(
            is_pending=True,
            ask_at_ns=self.request.ask_at_ns,
            model_id=self.model_id,
            adapter=self.adapter,
            priority=self.priority,
            expires_at_ns=self.expires_at_ns,
            arrives_at_ns=self.arrives_at_ns,
            prefix=self.prefix,
        )
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
