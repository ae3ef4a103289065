"""A production service in the simulation: its `main` on a simulated machine, in a process that
freezes, dies and is started again.
"""

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from typing import Any

from loadtest.sim.client import SimBus, SimClient, Store
from loadtest.sim.loop import SimLoop
from loadtest.sim.process import Ground, Process
from loadtest.sim.timeline import MS
from shared.bus import Bus
from shared.runtime.config import ServiceConfig
from shared.service import Machine, Runtime, run_on

RESTART_NS = 300 * MS
CHECKED_ONE_IN = 4  # instants at which something happened to a service
PENDING_BYTES = (2 * 1024 * 1024, 4096)  # that a connection holds while NATS is away

Main = Callable[[Runtime, Any], Awaitable[None]]


class SimClock:
    """The clocks of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def now_ns(self) -> int:
        return self._process.now_ns

    def wall_ns(self) -> int:
        return self._process.wall_ns


class SimRuntime(Runtime):
    """A runtime that reports what breaks a service: nothing may, but by the service's decision."""

    on_broken: Callable[[str, BaseException], None]

    def fail(self, why: str, error: BaseException | None = None) -> None:
        if error is not None:
            self.on_broken(why, error)
        super().fail(why, error)


class SimMachine(Machine):
    """What one life of a `Service` stands on."""

    def __init__(self, service: "Service") -> None:
        self._service = service

    async def connect(self, config: ServiceConfig, name: str) -> Bus:
        del config, name
        return self._service.make_bus()

    def make_runtime(
        self, service: str, config: ServiceConfig, bus: Bus, stack: AsyncExitStack
    ) -> Runtime:
        process = self._service
        runtime = SimRuntime(service, config.instance, bus, stack, SimClock(process))
        runtime.on_broken = process.on_broken
        process.runtime = runtime
        return runtime


class Service(Process):
    """Base of the simulated services.

    Args:
        store: the key-value store of the NATS server.

    Attributes:
        loop: of this life.
        runtime: of this life; None before its first connection.
    """

    kind: str
    main: Main

    def __init__(self, deployment: Ground, name: str, store: Store) -> None:
        super().__init__(deployment, name)
        self.store = store
        self.runtime: SimRuntime | None = None
        self._random = Random(f"{name} {deployment.random.random()}")
        self._past_loops: list[SimLoop] = []
        self._num_idle = 0
        self._finding: AssertionError | None = None
        self.pending_bytes_max = self._random.choice(PENDING_BYTES)

    @abstractmethod
    def config(self) -> ServiceConfig:
        """The settings of a new life."""

    def make_bus(self) -> Bus:
        """The bus of a new life."""
        return SimBus(SimClient(self.deployment.wires, self, self.loop), self.store)

    def part(self, name: str) -> Any:
        """A part of the running service (`Runtime.parts`); None where it has none."""
        return None if self.runtime is None else self.runtime.parts.get(name)

    def on_start(self) -> None:
        self.runtime = None
        self.loop = loop = SimLoop(self, self._random)
        self._past_loops.append(loop)
        running = run_on(SimMachine(self), self.kind, self.config(), self.main)
        task = loop.create_task(running)
        task.add_done_callback(partial(self._on_over, self.life))

    def on_crash(self) -> None:
        self.runtime = None

    def on_disconnected(self) -> None:
        self._call("_on_disconnected")

    def on_reconnected(self) -> None:
        self._call("_on_reconnected")

    def on_broken(self, why: str, error: BaseException) -> None:
        """An exception that the service did not expect ends it: a finding of the simulation."""
        if self._finding is None:
            self._finding = AssertionError(f"{self.name}: {why}: {type(error).__name__}: {error}")
            self._finding.__cause__ = error

    def on_idle(self) -> None:
        """Raises:
        AssertionError: something broke the service.
        """
        self._num_idle += 1
        self.is_touched = self._num_idle % CHECKED_ONE_IN == 0
        if self._finding is not None:
            raise self._finding

    def terminate(self) -> None:
        """SIGTERM."""
        if self.runtime is not None and self.is_up:
            stop = self.runtime.stopping.set
            self.run(self.life, partial(self._soon, stop))

    def _soon(self, callback: Callable[[], None]) -> None:
        self.loop.call_soon(callback)

    def dispose(self) -> None:
        """Close all loops, once the simulation is over."""
        for loop in self._past_loops:
            loop.dispose()

    def _call(self, callback: str) -> None:
        if self.runtime is not None:
            self.loop.create_task(getattr(self.runtime.bus, callback)())

    def _on_over(self, life: int, task: Any) -> None:
        if life != self.life or not self.is_up:
            return
        if (error := task.exception()) is not None:
            self.on_broken("it ended", error)
        self.end(RESTART_NS + self._random.randrange(RESTART_NS))
