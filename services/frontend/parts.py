"""Builds the parts of the frontend from its configuration and ports."""

from collections.abc import Callable, Mapping

from services.frontend.adapters.directory import AdapterDirectory
from services.frontend.adapters.uploads import Uploads
from services.frontend.app import (
    App,
    Base,
    ModelParts,
    Observability,
    StorageParts,
    TenantParts,
    TurnParts,
)
from services.frontend.config import FrontendConfig
from services.frontend.core.limits.capacity import Capacity, Slots, TenantRate
from services.frontend.core.limits.quotas import Kind, Quotas
from services.frontend.core.observability.trace_sampler import TraceSampler
from services.frontend.core.sessions.open_sessions import OpenSessions
from services.frontend.core.turns.job_events import JobLimits
from services.frontend.core.turns.jobs import Jobs
from services.frontend.core.turns.turns import TurnLimits, Turns
from services.frontend.models.registry import Models
from services.frontend.observability.deployment_feed import DeploymentFeed
from services.frontend.observability.deployment_metrics import DeploymentMetrics
from services.frontend.observability.tracing import RequestTracer
from services.frontend.ports import Ports
from services.frontend.sessions.background import BackgroundRuns
from services.frontend.sessions.conversation_store import ConversationStore
from services.frontend.sessions.response_store import ResponseStore
from services.frontend.sessions.store import SessionStore
from services.frontend.tenants.auth import Keyring
from services.frontend.tenants.gates import Gates
from services.frontend.turns.hints import HintGate
from services.frontend.turns.hub import Hub
from services.frontend.turns.job_hub import JobHub
from shared.ids import FrontendId
from shared.service import Runtime


def build_app(
    runtime: Runtime,
    config: FrontendConfig,
    frontend_id: FrontendId,
    keyring: Keyring,
    ports: Ports,
) -> App:
    """All parts, not yet subscribed. What must be closed is, with the runtime."""
    is_shared = keyring.has_several_tenants
    storage = build_storage(runtime, config, ports)
    return App(
        base=Base(config=config, bus=runtime.bus, clock=runtime.clock),
        library=build_library(
            runtime, config, frontend_id, ports, storage.sessions, is_shared=is_shared
        ),
        storage=storage,
        turns=build_turns(runtime, config, frontend_id),
        tenants=build_tenants(runtime, config, keyring, ports),
        observability=build_observability(runtime, config, ports),
    )


def build_storage(runtime: Runtime, config: FrontendConfig, ports: Ports) -> StorageParts:
    """Sessions and responses."""
    sessions = SessionStore(ports.redis, runtime.clock, config.session_expiry_s)
    runtime.stack.push_async_callback(sessions.close)
    responses = ResponseStore(sessions)
    return StorageParts(
        sessions=sessions,
        responses=responses,
        conversations=ConversationStore(sessions),
        background=BackgroundRuns(responses),
        claims=OpenSessions(),
    )


def build_library(
    runtime: Runtime,
    config: FrontendConfig,
    frontend_id: FrontendId,
    ports: Ports,
    sessions: SessionStore,
    *,
    is_shared: bool,
) -> ModelParts:
    """Models, adapters, and what makes prompts for them."""
    texts = ports.texts(is_shared)
    models = Models(
        runtime.clock,
        runtime.spawn,
        ports.model_files,
        config.served_model_names,
        texts.template_names,
        config.deployed_models,
    )
    adapters = AdapterDirectory(sessions, models, runtime.clock)
    runtime.stack.push_async_callback(adapters.close)
    uploads = Uploads(
        runtime.bus, frontend_id, ports.upload_files, config.adapter_bytes_max, is_shared=is_shared
    )
    return ModelParts(
        models=models, adapters=adapters, uploads=uploads, texts=texts, grammars=ports.grammars
    )


def build_turns(runtime: Runtime, config: FrontendConfig, frontend_id: FrontendId) -> TurnParts:
    """Turns, jobs and advisories."""
    bus, clock = runtime.bus, runtime.clock
    limits = TurnLimits(
        untaken_ns=int(config.resubmit_unpulled_s * 1e9),
        silent_ns=int(config.resubmit_silent_s * 1e9),
        give_up_ns=int(config.give_up_s * 1e9),
        turn_ns_max=int(config.turn_s_max * 1e9),
        prompt_bytes_max=min(config.prompt_sent_bytes_max, bus.payload_bytes_max // 4),
    )
    hub = Hub(
        bus,
        clock,
        frontend_id,
        Turns(frontend_id, limits),
        num_shards=config.scheduler_shards,
        num_tracker_shards=config.tracker_shards,
    )
    jobs = JobHub(bus, clock, frontend_id, Jobs(frontend_id, JobLimits()))
    hints = HintGate(bus, clock, frontend_id, config.hint_limits, config.tracker_shards)
    return TurnParts(hub=hub, jobs=jobs, hints=hints)


def build_tenants(
    runtime: Runtime, config: FrontendConfig, keyring: Keyring, ports: Ports
) -> TenantParts:
    """Limits of the frontend, and of each tenant."""
    capacity = Capacity(config.jobs_max, config.job_bytes_max)
    slots, is_shared = Slots(config.requests_max), keyring.has_several_tenants
    free: Mapping[Kind, Callable[[], int]] = {
        "turns": lambda: slots.num_free,
        "jobs": lambda: capacity.num_free,
        "job_bytes": lambda: capacity.num_free_bytes,
    }
    return TenantParts(
        slots=slots,
        capacity=capacity,
        quotas=Quotas(config.tenant_limits, keyring.limits, free if is_shared else None),
        gates=Gates(ports.threads, is_shared=is_shared),
        adapter_changes=TenantRate(
            config.tenant_adapter_changes_per_minute, "changes of adapters", runtime.clock.now_ns
        ),
    )


def build_observability(runtime: Runtime, config: FrontendConfig, ports: Ports) -> Observability:
    """Metrics, dashboard and traces."""
    metrics = DeploymentMetrics(runtime.bus, runtime.process)
    sampler = TraceSampler(config.trace_share)
    return Observability(
        metrics=metrics,
        feed=DeploymentFeed(runtime.bus, runtime.clock, metrics),
        tracer=RequestTracer(runtime.tracer, runtime.clock, sampler, ports.draw),
    )
