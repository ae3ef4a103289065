"""What every endpoint needs, made once at the start."""

from dataclasses import dataclass

from fastapi import Request

from services.frontend.adapters import AdapterDirectory
from services.frontend.background import BackgroundRuns
from services.frontend.compiling.maker import GrammarMaker
from services.frontend.config import FrontendConfig
from services.frontend.core.claims import Claims
from services.frontend.core.pace import Pace
from services.frontend.core.quotas import Quotas, TenantCapacity
from services.frontend.core.slots import Slots
from services.frontend.gates import Gates
from services.frontend.hint_gate import HintGate
from services.frontend.house import HouseMetrics
from services.frontend.hub import Hub
from services.frontend.job_hub import JobHub
from services.frontend.models import Models
from services.frontend.rendering.texts import Texts
from services.frontend.responses import ResponseStore
from services.frontend.sessions import SessionStore
from services.frontend.tracing import RequestTracer
from services.frontend.uploads import Uploads
from services.frontend.watching import HouseWatch
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
    """The one `App`, which `edge.make_api` put into the application's state."""
    app = request.app.state.app
    assert isinstance(app, App)
    return app
