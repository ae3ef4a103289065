"""The shell: connect, subscribe, listen, wait, drain."""

import asyncio
import logging
import math
import resource
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from services.frontend.adapters import AdapterDirectory
from services.frontend.api import adapters_nats, nats
from services.frontend.api.sessions import advisories
from services.frontend.app import App
from services.frontend.auth import Keyring, load_keyring
from services.frontend.background import BackgroundRuns
from services.frontend.compiling.maker import GrammarMaker
from services.frontend.config import FrontendConfig
from services.frontend.connections import Connections
from services.frontend.core.capacity import Capacity
from services.frontend.core.claims import Claims
from services.frontend.core.crew import CrewLimits
from services.frontend.core.job_events import JobLimits
from services.frontend.core.jobs import Jobs
from services.frontend.core.pace import Pace
from services.frontend.core.quotas import Kind, Quotas
from services.frontend.core.slots import Slots
from services.frontend.core.traced import TraceSampler
from services.frontend.core.turns import TurnLimits, Turns
from services.frontend.edge import make_api
from services.frontend.gates import Gates, part_of
from services.frontend.hint_gate import HintGate
from services.frontend.house import HouseMetrics
from services.frontend.hub import Hub
from services.frontend.job_hub import JobHub
from services.frontend.models import Models
from services.frontend.rendering.pool import Pool
from services.frontend.rendering.texts import Texts
from services.frontend.responses import ResponseStore
from services.frontend.sessions import SessionStore
from services.frontend.tenant_links import connect_links
from services.frontend.tracing import RequestTracer
from services.frontend.uploads import Uploads
from services.frontend.watching import HouseWatch
from shared.bus import Bus
from shared.errors import ConfigError
from shared.ids import FrontendId, new_id
from shared.service import Runtime
from shared.subjects import ADAPTER_CHANGED, SESSION_FORGET, WORKER_REPORT

log = logging.getLogger(__name__)

BACKLOG = 2048
KEEP_ALIVE_S = 75
UNSENT_BYTES = 64 * 1024  # of one connection in the kernel
SHUTDOWN_S = 2  # for streams to tell their end, after `drain_s`
FORGET_WORKERS_S = 5.0
SHORT_CHAT_S_MAX = 3.0  # to render one, if its process gets little of a processor


class _Server(uvicorn.Server):
    """Uvicorn without its own signal handlers: the service's shell has them."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def main(runtime: Runtime, config: FrontendConfig) -> None:
    """Serve HTTP until told to stop."""
    keyring = load_keyring(config)
    _allow_many_files()
    tls_files = config.tls_files
    listener = listen(config.http_address, config.http_port)
    frontend_id = FrontendId(new_id(f"fe-{config.instance}"))
    runtime.process = frontend_id
    sessions = SessionStore(
        config.redis_url, runtime.clock, config.session_expiry_s, config.redis_access
    )
    runtime.stack.push_async_callback(sessions.close)
    is_shared = keyring.has_several_tenants
    texts = make_texts(runtime, config, is_shared=is_shared)
    models = Models(
        runtime.clock,
        runtime.spawn,
        config.served_model_names,
        texts.template_names,
        config.deployed_models,
    )
    runtime.stack.callback(models.close)
    runtime.models = models.names
    runtime.spawn(models.prepare(), "imports")
    turns = Turns(frontend_id, _limits(config))
    hub = Hub(
        runtime.bus,
        runtime.clock,
        frontend_id,
        turns,
        num_shards=config.scheduler_shards,
        num_tracker_shards=config.tracker_shards,
    )
    jobs = JobHub(
        runtime.bus,
        runtime.clock,
        frontend_id,
        Jobs(frontend_id, JobLimits()),
        Capacity(config.jobs_max, config.job_bytes_max),
    )
    slots, claims = Slots(config.requests_max), Claims()
    gates = Gates(is_shared=is_shared)
    runtime.stack.callback(gates.close)
    quotas = Quotas(
        config.tenant_limits,
        keyring.limits,
        _shared(slots, jobs.capacity) if is_shared else None,
    )
    adapters = AdapterDirectory(sessions, models, runtime.clock)
    runtime.stack.push_async_callback(adapters.close)
    uploads = Uploads(
        runtime.bus, frontend_id, config.data_dir / "uploads", config.adapter_bytes_max,
        is_shared=is_shared,
    )  # fmt: skip
    hints = HintGate(
        runtime.bus, runtime.clock, frontend_id, config.hint_limits, config.tracker_shards
    )
    house = HouseMetrics(runtime.bus, runtime.process)
    responses = ResponseStore(sessions)
    grammars = GrammarMaker(runtime.clock)
    runtime.stack.push_async_callback(grammars.close)
    app = App(
        config,
        runtime.bus,
        runtime.clock,
        models,
        sessions,
        hub,
        jobs,
        slots,
        texts,
        claims,
        quotas,
        adapters,
        uploads,
        Pace(config.tenant_adapter_changes_per_minute, "changes of adapters", runtime.clock.now_ns),
        hints,
        grammars,
        responses,
        BackgroundRuns(responses),
        house,
        HouseWatch(runtime.bus, runtime.clock, house),
        RequestTracer(
            runtime.tracer,
            runtime.clock,
            TraceSampler(config.trace_share, config.traces_per_s),
        ),
        gates,
    )
    runtime.hints = hints.status

    await _subscribe(runtime, app, keyring)
    connections = Connections(config, runtime.clock)
    runtime.spawn(connections.run(), "patience")
    api = make_api(app, keyring)
    server = _Server(_uvicorn_config(api, connections, config.drain_s, tls_files))
    serving = runtime.spawn(_serve(server, listener, runtime), "http")
    address, port = listener.getsockname()[:2]
    scheme = "http" if tls_files is None else "https"
    log.info("listening", extra={"url": f"{scheme}://{address}:{port}"})
    await runtime.ready()

    await runtime.stopping.wait()
    server.should_exit = True  # no new requests; open ones may finish
    app.watch.stop()
    idle = asyncio.create_task(app.background.idle(config.drain_s))
    await asyncio.wait({serving, idle}, timeout=config.drain_s)
    await hub.stop()
    await jobs.stop()
    await app.background.stop()
    await asyncio.wait({serving})


async def _subscribe(runtime: Runtime, app: App, keyring: Keyring) -> None:
    """Hear workers and tenants, and whatever the parts of the app are told."""
    claims = app.claims
    await app.hub.start(runtime)
    await app.hints.start()
    await app.jobs.start(runtime)
    await runtime.bus.subscribe(WORKER_REPORT, app.models.on_report)
    await runtime.bus.subscribe(
        SESSION_FORGET, lambda forget: claims.forget(forget.tenant, forget.session_id)
    )
    await runtime.bus.subscribe(ADAPTER_CHANGED, app.adapters.on_changed)
    await app.uploads.serve()
    runtime.spawn(app.sessions.run(), "session store")
    runtime.spawn(app.background.run(), "background")
    for link in await connect_links(runtime, app.config, keyring):
        await nats.serve(app, keyring, link)
        await advisories.serve(app, link)
        await adapters_nats.serve(app, keyring, link)
        await link.bus.flush()
    runtime.spawn(_forget_workers(app.models, runtime.bus), "forget workers")


def listen(address: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        ConfigError: the port is taken, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"SYMPHONY_HTTP_PORT={port}: cannot listen on {address}: {error.strerror}"
        ) from None
    # Both are inherited by connections. What a client does not read waits with us, where it is
    # counted, and not in megabytes of the kernel's.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    # asyncio's own loop sets this only on sockets that name their protocol; without it an answer's
    # body waits 40 ms for the acknowledgement of its head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _allow_many_files() -> None:
    """As many as the system lets us have: some start programs with 1,024, which is what one
    address may have connections.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _limits(config: FrontendConfig) -> TurnLimits:
    return TurnLimits(
        untaken_ns=int(config.resubmit_unpulled_s * 1e9),
        silent_ns=int(config.resubmit_silent_s * 1e9),
        give_up_ns=int(config.give_up_s * 1e9),
        turn_ns_max=int(config.turn_s_max * 1e9),
    )


def _shared(slots: Slots, capacity: Capacity) -> Mapping[Kind, Callable[[], int]]:
    """What is free of what several tenants share."""
    return {
        "turns": lambda: slots.num_free,
        "jobs": lambda: capacity.num_free,
        "job_bytes": lambda: capacity.num_free_bytes,
    }


def make_texts(runtime: Runtime, config: FrontendConfig, *, is_shared: bool) -> Texts:
    """Processes for texts and templates, until the runtime ends.

    Args:
        is_shared: by several tenants.
    """
    num = config.text_processes
    of_tenant = part_of(num, is_shared=True) if is_shared else 0
    pools = []
    for limit_s in (config.text_limit_s, min(config.text_limit_s, SHORT_CHAT_S_MAX)):
        limits = CrewLimits(
            num_children=num, work_ns=int(limit_s * 1e9), children_of_tenant=of_tenant
        )
        pools.append(Pool(runtime.clock, limits))
        runtime.stack.push_async_callback(pools[-1].close)
    return Texts(*pools)


def _uvicorn_config(
    api: FastAPI,
    connections: Connections,
    drain_s: float,
    tls_files: tuple[Path, Path] | None,
) -> uvicorn.Config:
    cert, key = tls_files or (None, None)
    return uvicorn.Config(
        api,
        http=connections.protocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        ssl_certfile=cert,
        ssl_keyfile=key,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(drain_s) + SHUTDOWN_S,
    )


async def _serve(server: _Server, listener: socket.socket, runtime: Runtime) -> None:
    await server.serve([listener])
    if not runtime.stopping.is_set():
        runtime.fail("the HTTP server stopped")


async def _forget_workers(models: Models, bus: Bus) -> None:
    """Drop workers that are gone, unless it is NATS that was."""
    while True:
        await asyncio.sleep(FORGET_WORKERS_S)
        if bus.steady_for_s >= FORGET_WORKERS_S:
            models.on_tick()
