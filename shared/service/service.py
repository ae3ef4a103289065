"""The process around every service: signals, logs, bus, metrics, status, readiness, drain.

A service's ``main`` connects what it needs on the runtime's exit stack, calls `Runtime.ready`, and
waits for `stopping`.
"""

import asyncio
import errno
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, TypeVar

import uvloop

from shared.bus import Bus
from shared.errors import SymphonyError
from shared.private import PRIVATE_UMASK
from shared.runtime import metrics
from shared.runtime.clock import Clock, SystemClock
from shared.runtime.config import ServiceConfig, load_config_or_exit
from shared.runtime.exposition import own_metrics, pack_text
from shared.runtime.logs import configure_logs
from shared.runtime.stages import StartStages
from shared.tracing import NO_TRACER, Tracer
from shared.wire.messages import (
    Empty,
    HintStatus,
    KvPool,
    MetricsWanted,
    ServiceMetrics,
    ServiceStatus,
)
from shared.wire.subjects import SERVICE_METRICS, SERVICE_STATUS

log = logging.getLogger(__name__)

C = TypeVar("C", bound=ServiceConfig)

PEER_ERRNOS = {
    errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN,
}  # fmt: skip


class Runtime:
    """The environment of a running service.

    Attributes:
        bus: connected and reconnecting.
        process: its unique name: see `ServiceMetrics`.
        clock: monotonic and wall time.
        stack: closed in reverse order at the end; push resources here.
        stopping: set on SIGTERM or SIGINT, and by `fail`.
        models: returns the models that are served here now; empty unless this is a frontend.
        hints: returns the state of advisories; None unless this is a frontend or tracker.
        pools: returns what KV there is room for; empty unless this is a worker.
        stages: of the start.
        tracer: begins spans.
        parts: components by name, for checks from outside (simulation, integrity).
    """

    def __init__(
        self,
        service: str,
        instance: str,
        bus: Bus,
        stack: AsyncExitStack,
        clock: Clock | None = None,
    ) -> None:
        self.service = service
        self.instance = instance
        self.process = f"{service}-{instance}"
        self.bus = bus
        self.clock = clock or SystemClock()
        self.stack = stack
        self.stopping = asyncio.Event()
        self.stages = StartStages(self.clock)
        self.state = "starting"
        self.exit_code = 0
        self.models: Callable[[], list[str]] = list
        self.hints: Callable[[], HintStatus | None] = lambda: None
        self.pools: Callable[[], list[KvPool]] = list
        self.tracer: Tracer = NO_TRACER
        self.parts: dict[str, Any] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def ready(self) -> None:
        """All subscriptions are made: flush them to the server, then report ready."""
        await self.bus.flush()
        self.state = "ready"
        log.info("ready")

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run `work` as a task of the service. If it raises, the process ends: a service must not
        run partially.
        """
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def fail(self, why: str, error: BaseException | None = None) -> None:
        """Shut down in order, and exit with status 1."""
        log.error(why, exc_info=error)
        self.exit_code = 1
        self.stopping.set()

    async def cancel_tasks(self) -> None:
        """Cancel all tasks and wait for them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(f"task {task.get_name()} failed", error)

    async def _metrics(self, wanted: MetricsWanted) -> ServiceMetrics:
        # In a thread: there may be many, for which turns must not wait.
        text = await asyncio.to_thread(own_metrics, as_openmetrics=wanted.as_openmetrics)
        return ServiceMetrics(service=self.service, process=self.process, packed=pack_text(text))

    async def _status(self, _: Empty) -> ServiceStatus:
        return ServiceStatus(
            service=self.service,
            instance=self.instance,
            pid=os.getpid(),
            state=self.state,
            process=self.process,
            models=self.models(),
            hints=self.hints(),
            pools=self.pools(),
            stage=self.stages.now(),
        )


def run(service: str, config_type: type[C], main: Callable[[Runtime, C], Awaitable[None]]) -> None:
    """Run `main` as this process's service until SIGTERM, then drain and exit."""
    os.umask(PRIVATE_UMASK)
    config = load_config_or_exit(config_type)
    configure_logs(service, config.instance, config.log_level)
    try:
        code = uvloop.run(run_on(Machine(), service, config, main))
    except SymphonyError as error:
        log.error(error.message)
        code = 1
    sys.exit(code)


class Machine:
    """Creates a service's bus and runtime. The simulation has another implementation."""

    async def connect(self, config: ServiceConfig, name: str) -> Bus:
        """The bus. Waits for NATS without limit, since servers and services start in any order."""
        return await Bus.connect(config.nats_url, name, config.nats_access, timeout_s=None)

    def make_runtime(
        self, service: str, config: ServiceConfig, bus: Bus, stack: AsyncExitStack
    ) -> Runtime:
        """The runtime, which stops on signals and fails on errors of threads."""
        runtime = Runtime(service, config.instance, bus, stack)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, runtime.stopping.set)
        threading.excepthook = partial(_on_thread_error, loop, runtime)
        metrics.expose(config.metrics_port, config.metrics_address)
        if config.otlp_endpoint:  # imported only where spans are recorded
            from shared.tracing.otlp import OtlpTracer

            runtime.tracer = OtlpTracer(
                config.otlp_endpoint, service, config.instance, runtime.clock
            )
            stack.push_async_callback(runtime.tracer.close)
        return runtime


async def run_on(
    machine: Machine, service: str, config: C, main: Callable[[Runtime, C], Awaitable[None]]
) -> int:
    """Run a service from its first connection to its shutdown; returns the exit status."""
    async with AsyncExitStack() as stack:
        bus = await machine.connect(config, f"{service}-{config.instance}")
        stack.push_async_callback(bus.drain)
        runtime = machine.make_runtime(service, config, bus, stack)
        stack.push_async_callback(runtime.cancel_tasks)
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: _on_loop_error(runtime, context)
        )
        await bus.serve(SERVICE_STATUS, runtime._status)
        await bus.serve(SERVICE_METRICS, runtime._metrics)
        await main(runtime, config)
        runtime.state = "draining"
        log.info("stopping")
    return runtime.exit_code


def _on_thread_error(
    loop: asyncio.AbstractEventLoop, runtime: Runtime, args: threading.ExceptHookArgs
) -> None:
    """A thread of this process died: end the process, since its work would be missing."""
    name = args.thread.name if args.thread is not None else "unknown"
    with suppress(RuntimeError):  # the loop is closed: the process ends anyway
        loop.call_soon_threadsafe(runtime.fail, f"thread {name} failed", args.exc_value)


def _is_of_a_peer(error: object) -> bool:
    """Whether it is a broken connection, which is no error of this process, unlike a full disk or
    too many open files.
    """
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    return isinstance(error, OSError) and error.errno in PEER_ERRNOS


def _on_loop_error(runtime: Runtime, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if _is_of_a_peer(error):
        log.warning("connection error", extra={"error": str(error)})
        return
    runtime.fail(
        f"unexpected: {context.get('message')}", error if isinstance(error, BaseException) else None
    )
