"""What every endpoint needs, made once at the start."""

from dataclasses import dataclass

from fastapi import Request

from services.frontend.adapters.directory import AdapterDirectory
from services.frontend.adapters.uploads import Uploads
from services.frontend.config import FrontendConfig
from services.frontend.core.limits.quotas import Quotas, TenantCapacity
from services.frontend.core.limits.rate import Pace
from services.frontend.core.limits.slots import Slots
from services.frontend.core.sessions.open_sessions import Claims
from services.frontend.grammars import GrammarMaker
from services.frontend.hints.gate import HintGate
from services.frontend.models.registry import Models
from services.frontend.observability.deployment_feed import HouseWatch
from services.frontend.observability.deployment_metrics import HouseMetrics
from services.frontend.observability.tracing import RequestTracer
from services.frontend.rendering.texts import Texts
from services.frontend.sessions.background import BackgroundRuns
from services.frontend.sessions.response_store import ResponseStore
from services.frontend.sessions.store import SessionStore
from services.frontend.tenants.gates import Gates
from services.frontend.turns.hub import Hub
from services.frontend.turns.job_hub import JobHub
from shared.bus import Bus
from shared.clock import Clock
from shared.ids import TenantId


@dataclass(slots=True)
class App:
    config: FrontendConfig
    bus: Bus
    clock: Clock
    models: Models
    sessions: SessionStore
    hub: Hub
    jobs: JobHub
    slots: Slots
    texts: Texts
    claims: Claims
    quotas: Quotas
    adapters: AdapterDirectory
    uploads: Uploads
    adapter_changes: Pace
    hints: HintGate
    grammars: GrammarMaker
    responses: ResponseStore
    background: BackgroundRuns
    house: HouseMetrics
    watch: HouseWatch
    tracer: RequestTracer
    gates: Gates

    def capacity_of(self, tenant: TenantId) -> TenantCapacity:
        """The room for inputs and large bodies, as a request of the tenant finds it."""
        return TenantCapacity(self.jobs.capacity, self.quotas, tenant)


def app_of(request: Request) -> App:
    """The one `App`, which `asgi.make_api` put into the application's state."""
    app = request.app.state.app
    assert isinstance(app, App)
    return app
