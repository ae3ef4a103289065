"""The shell: connect, build the parts, subscribe, listen, wait, drain."""

import asyncio
import logging

from services.frontend.api import nats
from services.frontend.api.adapters import nats as adapters_nats
from services.frontend.api.sessions import advisories
from services.frontend.app import App
from services.frontend.asgi import make_api
from services.frontend.config import FrontendConfig
from services.frontend.models.registry import Models
from services.frontend.parts import build_app
from services.frontend.ports import Ports, open_ports
from services.frontend.tenants.auth import Keyring, load_keyring
from services.frontend.tenants.links import Connect, connect_links
from shared.bus import Bus
from shared.ids import FrontendId, new_id
from shared.service import Runtime
from shared.wire.subjects import ADAPTER_CHANGED, SESSION_FORGET, WORKER_REPORT

log = logging.getLogger(__name__)

FORGET_WORKERS_S = 5.0


async def main(runtime: Runtime, config: FrontendConfig, ports: Ports | None = None) -> None:
    """Serve HTTP until the runtime stops.

    Args:
        ports: what it takes from outside; None: the real ones.
    """
    keyring = load_keyring(config)
    ports = ports or open_ports(runtime, config)
    frontend_id = FrontendId(new_id(f"fe-{config.instance}"))
    runtime.process = frontend_id
    app = runtime.parts["app"] = build_app(runtime, config, frontend_id, keyring, ports)
    runtime.models, runtime.hints = app.models.names, app.hints.status
    runtime.spawn(ports.model_files.prepare(), "imports")
    await _subscribe(runtime, app, keyring, ports.connect)
    serving = runtime.spawn(_serve(runtime, app, keyring, ports), "http")
    log.info("listening", extra={"url": ports.http.url})
    await runtime.ready()

    await runtime.stopping.wait()
    ports.http.stop()  # no new requests; open ones may finish
    await _drain(app, serving)


async def _subscribe(runtime: Runtime, app: App, keyring: Keyring, connect: Connect) -> None:
    """Take what workers, the scheduler and tenants send, and start what runs all the time."""
    claims = app.claims
    await app.hub.start(runtime)
    await app.hints.start()
    await app.jobs.start(runtime)
    await runtime.bus.subscribe(WORKER_REPORT, app.models.on_report)
    await runtime.bus.subscribe(
        SESSION_FORGET, lambda forget: claims.forget(forget.tenant, forget.session_id)
    )
    await runtime.bus.subscribe(ADAPTER_CHANGED, app.adapters.on_changed)
    await app.library.uploads.serve()
    runtime.spawn(app.sessions.run(), "session store")
    runtime.spawn(app.storage.background.run(), "background")
    for link in await connect_links(runtime, app.config, keyring, connect):
        await nats.serve(app, keyring, link)
        await advisories.serve(app, link)
        await adapters_nats.serve(app, keyring, link)
        await link.bus.flush()
    runtime.spawn(app.observability.feed.run(), "history")
    runtime.spawn(_forget_workers(app.models, runtime.bus), "forget workers")


async def _serve(runtime: Runtime, app: App, keyring: Keyring, ports: Ports) -> None:
    await ports.http.serve(make_api(app, keyring))
    if not runtime.stopping.is_set():
        runtime.fail("the HTTP server stopped")


async def _drain(app: App, serving: "asyncio.Task[None]") -> None:
    """Let what is open finish, for `drain_s` at most; then end it with an error."""
    background, drain_s = app.storage.background, app.config.drain_s
    app.observability.feed.stop()
    idle = asyncio.create_task(background.idle(drain_s))
    await asyncio.wait({serving, idle}, timeout=drain_s)
    await app.hub.stop()
    await app.jobs.stop()
    await background.stop()
    await asyncio.wait({serving})


async def _forget_workers(models: Models, bus: Bus) -> None:
    """Drop workers that are gone, unless it is NATS that was."""
    while True:
        await asyncio.sleep(FORGET_WORKERS_S)
        if bus.steady_for_s >= FORGET_WORKERS_S:
            models.on_tick()
