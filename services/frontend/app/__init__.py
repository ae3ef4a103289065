"""What every endpoint needs, made once at the start."""

from dataclasses import dataclass

from fastapi import Request

from services.frontend.adapters.directory import AdapterDirectory
from services.frontend.adapters.uploads import Uploads
from services.frontend.compiling.maker import GrammarMaker
from services.frontend.config import FrontendConfig
from services.frontend.core.limits.capacity import Capacity, Slots, TenantRate
from services.frontend.core.limits.quotas import Quotas, TenantCapacity
from services.frontend.core.sessions.open_sessions import OpenSessions
from services.frontend.models.registry import Models
from services.frontend.observability.deployment_feed import DeploymentFeed
from services.frontend.observability.deployment_metrics import DeploymentMetrics
from services.frontend.observability.tracing import RequestTracer
from services.frontend.rendering.texts import Texts
from services.frontend.sessions.background import BackgroundRuns
from services.frontend.sessions.conversation_store import ConversationStore
from services.frontend.sessions.response_store import ResponseStore
from services.frontend.sessions.store import SessionStore
from services.frontend.tenants.gates import Gates
from services.frontend.turns.hints import HintGate
from services.frontend.turns.hub import Hub
from services.frontend.turns.job_hub import JobHub
from shared.bus import Bus
from shared.ids import TenantId
from shared.runtime.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What everything else is built on."""

    config: FrontendConfig
    bus: Bus
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """From a request's words to tokens of a model that is served."""

    models: Models
    adapters: AdapterDirectory
    uploads: Uploads
    texts: Texts
    grammars: GrammarMaker


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageParts:
    """Sessions and responses in Redis.

    Attributes:
        claims: sessions that requests have open here.
    """

    sessions: SessionStore
    responses: ResponseStore
    conversations: ConversationStore
    background: BackgroundRuns
    claims: OpenSessions


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnParts:
    """What is in flight: turns, jobs and advisories."""

    hub: Hub
    jobs: JobHub
    hints: HintGate


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantParts:
    """What one tenant may have of the frontend at once, or do in a minute."""

    slots: Slots
    capacity: Capacity
    quotas: Quotas
    gates: Gates
    adapter_changes: TenantRate


@dataclass(frozen=True, slots=True, kw_only=True)
class Observability:
    """Metrics of all processes, the dashboard's feed of them, and traces."""

    metrics: DeploymentMetrics
    feed: DeploymentFeed
    tracer: RequestTracer


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """The frontend by its parts. What endpoints use of them is also found by its own name."""

    base: Base
    library: ModelParts
    storage: StorageParts
    turns: TurnParts
    tenants: TenantParts
    observability: Observability

    @property
    def config(self) -> FrontendConfig:
        return self.base.config

    @property
    def bus(self) -> Bus:
        return self.base.bus

    @property
    def clock(self) -> Clock:
        return self.base.clock

    @property
    def models(self) -> Models:
        return self.library.models

    @property
    def adapters(self) -> AdapterDirectory:
        return self.library.adapters

    @property
    def texts(self) -> Texts:
        return self.library.texts

    @property
    def grammars(self) -> GrammarMaker:
        return self.library.grammars

    @property
    def sessions(self) -> SessionStore:
        return self.storage.sessions

    @property
    def responses(self) -> ResponseStore:
        return self.storage.responses

    @property
    def conversations(self) -> ConversationStore:
        return self.storage.conversations

    @property
    def claims(self) -> OpenSessions:
        return self.storage.claims

    @property
    def hub(self) -> Hub:
        return self.turns.hub

    @property
    def jobs(self) -> JobHub:
        return self.turns.jobs

    @property
    def hints(self) -> HintGate:
        return self.turns.hints

    @property
    def slots(self) -> Slots:
        return self.tenants.slots

    @property
    def quotas(self) -> Quotas:
        return self.tenants.quotas

    @property
    def gates(self) -> Gates:
        return self.tenants.gates

    def capacity_of(self, tenant: TenantId) -> TenantCapacity:
        """The room for inputs and large bodies that is left to a request of the tenant."""
        return TenantCapacity(self.tenants.capacity, self.quotas, tenant)


def app_of(request: Request) -> App:
    """The one `App`, which `asgi.make_api` put into the application's state."""
    app = request.app.state.app
    assert isinstance(app, App)
    return app
