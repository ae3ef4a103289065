"""Run services inside a test's own event loop, on a real bus."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from nats.aio.client import Client

from shared.bus import Bus
from shared.runtime.config import ServiceConfig
from shared.service import Runtime
from shared.wire.subjects import SERVICE_METRICS, SERVICE_STATUS

C = TypeVar("C", bound=ServiceConfig)
T = TypeVar("T")

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0


class InProcessRuntime(Runtime):
    """A runtime whose readiness and failure a test can wait for."""

    def __init__(self, service: str, instance: str, bus: Bus, stack: AsyncExitStack) -> None:
        super().__init__(service, instance, bus, stack)
        self.is_ready = asyncio.Event()
        self.failure: tuple[str, BaseException | None] | None = None

    async def ready(self) -> None:
        await super().ready()
        self.is_ready.set()

    def fail(self, why: str, error: BaseException | None = None) -> None:
        self.failure = self.failure or (why, error)
        super().fail(why, error)


@asynccontextmanager
async def running(
    main: Callable[[Runtime, C], Awaitable[None]], config: C, service: str = "service"
) -> AsyncIterator[InProcessRuntime]:
    """A service's `main`, started as `shared.service.run` would start it, and ready.

    On leaving it is stopped as by SIGTERM. A failure of one of its tasks, or of `main` itself, is
    raised here.

    >>> async def test(config):
    ...     async with running(main, config) as runtime:
    ...         ...  # talk to it over a bus of your own
    """
    async with AsyncExitStack() as stack:
        bus = await Bus.connect(config.nats_url, f"{service}-{config.instance}")
        stack.push_async_callback(bus.drain)
        runtime = InProcessRuntime(service, config.instance, bus, stack)
        stack.push_async_callback(runtime.cancel_tasks)
        await bus.serve(SERVICE_STATUS, runtime._status)
        await bus.serve(SERVICE_METRICS, runtime._metrics)
        task = asyncio.ensure_future(main(runtime, config))
        started = asyncio.create_task(runtime.is_ready.wait())
        try:
            await asyncio.wait(
                {task, started}, timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
            )
            if not task.done():
                assert runtime.is_ready.is_set(), f"{service} not ready in {START_TIMEOUT_S:g} s"
                yield runtime
        finally:
            runtime.stopping.set()
            started.cancel()
            await asyncio.wait_for(task, STOP_TIMEOUT_S)
            runtime.state = "draining"
        if runtime.failure is not None:
            why, error = runtime.failure
            raise AssertionError(f"{service}: {why}") from error
        assert runtime.is_ready.is_set(), f"{service} ended before it was ready"


@asynccontextmanager
async def connected(url: str, name: str = "test") -> AsyncIterator[Bus]:
    """A bus of the test's own, drained at the end."""
    bus = await Bus.connect(url, name)
    try:
        yield bus
    finally:
        await bus.drain()


def client_of(bus: Bus) -> Client:
    """NATS's own client, to send what a bus would not."""
    return bus._client


async def sever(bus: Bus) -> None:
    """Cut a bus off as a crash would: nothing is delivered or sent any more."""
    await client_of(bus).close()


async def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait until `condition()` holds; fails the test after `timeout_s`."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "the awaited event never came"
        await asyncio.sleep(0.005)


async def eventually_answers(
    ask: Callable[[], Awaitable[T]], accept: Callable[[T], bool], timeout_s: float = 10.0
) -> T:
    """Ask until the answer is accepted, and return it; fails the test after `timeout_s`."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        answer = await ask()
        if accept(answer):
            return answer
        assert asyncio.get_running_loop().time() < deadline, f"the last answer was {answer}"
        await asyncio.sleep(0.005)
