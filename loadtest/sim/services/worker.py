"""A worker in the simulation: the production service over a simulated device and host."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any, Protocol

from loadtest.sim.arena import SimArena
from loadtest.sim.client import Store
from loadtest.sim.process import Process
from loadtest.sim.services.checks import check_worker
from loadtest.sim.services.copying import Copies
from loadtest.sim.services.deployment import SimDeployment
from loadtest.sim.services.device import Device, DeviceLost
from loadtest.sim.services.device_thread import SimThread
from loadtest.sim.services.forward import Asked
from loadtest.sim.services.model import NUM_HARDWARE, Model
from loadtest.sim.services.oneshot import MODEL_BYTES, SimOneshot, job_card
from loadtest.sim.services.service import RESTART_NS, Service
from loadtest.sim.services.worker_watch import watch_batches, watch_engine, watch_prompts
from loadtest.sim.threads import wait_ns
from loadtest.sim.timeline import MS, SECOND
from services.worker.config import WorkerConfig
from services.worker.core.costs.costs import StepCosts
from services.worker.core.engine.engine import EngineCore
from services.worker.core.engine_limits import AdmissionName, EngineLimits, LoraStart
from services.worker.core.pulling import Pulling
from services.worker.device.thread import DeviceThread
from services.worker.oneshot.core import BatchCore
from services.worker.oneshot.model import LoadableOneshot, OneshotModel
from services.worker.ports import Lock, OnMoved, TextModel, WorkerPorts
from services.worker.service import Worker as WorkerService
from shared.ids import HostId, SessionId, TenantId, TurnId, WorkerId
from shared.service import Runtime

LOAD_MAX_NS = 200 * MS  # what loading a model takes
STEPS_KNOWN, TOKENS_KNOWN = 20, 1000
ADMISSIONS: tuple[AdmissionName, ...] = ("eager", "eager", "deferred")
LORA_STARTS: tuple[LoraStart, ...] = ("auto", "stream", "assist")
TARGET_STEPS = (5, 30, 100)
ON_ORDER_SHARE = 0.5  # of workers: they load the one-shot model when the scheduler orders it
POOL_BLOCKS = 19  # the longest turn beside the largest adapter, as many tokens as the model takes


class HostKvstore(Protocol):
    """The kvstore of a host, as the files that it shares with workers show it."""

    @property
    def host_id(self) -> HostId: ...

    def attach(self, path: Path) -> SimArena:
        """The arena under this path.

        Raises:
            FileNotFoundError: there is none (any more).
        """

    def lock(self, path: Path, holder: Process) -> None:
        """Lock a lease file, until this life of the process is over."""

    def release_lock(self, path: Path) -> None:
        """Unlock it."""


class HostFiles:
    """The files of a worker's host."""

    def __init__(self, kvstore: HostKvstore, process: Process) -> None:
        self._kvstore = kvstore
        self._process = process

    def attach(self, path: str) -> Any:
        return self._kvstore.attach(Path(path))

    def lock(self, path: str) -> Lock:
        self._kvstore.lock(Path(path), self._process)
        return LeaseLock(self._kvstore, Path(path))

    def has_adapter(self, folder: str) -> bool:
        del folder
        return True  # each host has every one


class LeaseLock:
    """A locked lease file."""

    def __init__(self, kvstore: HostKvstore, path: Path) -> None:
        self._kvstore = kvstore
        self._path = path

    def close(self) -> None:
        self._kvstore.release_lock(self._path)


class Worker(Service):
    """Args:
    asked_by: what a turn's client asked for.

    Attributes:
        kv_id: under which the kvstore knows its model.
        device: of this life; None before its model is loaded.
        num_deferred: turns that steps with room for them left waiting.
        num_moved: turns that ran elsewhere and went on here.
        spent_ns: by which its clock is ahead while a call keeps a thread.
    """

    deployment: SimDeployment
    kind = "worker"

    def __init__(
        self,
        deployment: SimDeployment,
        kvstore: HostKvstore,
        number: int,
        store: Store,
        asked_by: Callable[[TurnId], Asked],
    ) -> None:
        super().__init__(deployment, f"worker-{number}", store)
        self.host_id = kvstore.host_id
        self.kv_id = WorkerId(f"{self.host_id}-w{number}-m0")
        self.spent_ns = 0
        self.num_deferred = self.num_moved = 0
        self.device: Device | None = None
        self._kvstore = kvstore
        self._asked_by = asked_by
        self._hardware = number % NUM_HARDWARE
        self._model = deployment.draw_model()
        self._config = self._draw_config(number)
        self._limits = EngineLimits(
            max_model_len=0,
            stage_timeout_min_ns=10 * MS,
            stage_timeout_max_ns=deployment.random.choice([20, 500]) * MS,
            lease_target_blocks=deployment.random.choice([2, 8]),
        )
        self._num_pages = self._model.num_layers * (
            POOL_BLOCKS
            if deployment.is_crowded
            else deployment.random.choice([POOL_BLOCKS, POOL_BLOCKS, 26, 34])
        )

    @property
    def now_ns(self) -> int:
        return super().now_ns + self.spent_ns

    @property
    def mover(self) -> Copies | None:
        """What copies its pages."""
        return None if self.device is None else self.device.mover

    @property
    def core(self) -> EngineCore:
        """The engine of the running service."""
        core: EngineCore = self.part(f"engine {self._model.model_id}")
        return core

    @property
    def pulling(self) -> Pulling:
        """Which prompts it pulls."""
        pulling: Pulling = self.part("prompts")
        return pulling

    @property
    def batches(self) -> BatchCore:
        """Its batches of one-shot jobs."""
        batches: BatchCore = self.part("batches")
        return batches

    @property
    def is_well(self) -> bool:
        """It takes turns."""
        is_ready = self.runtime is not None and self.runtime.state == "ready"
        is_broken = self.device is not None and self.device.is_broken
        return super().is_well and is_ready and not is_broken

    @property
    def is_writing(self) -> bool:
        """Whether blocks are in flight to the kvstore: also some that were abandoned at first,
        while there are no requests."""
        write_behind = self.core.write_behind
        return bool(write_behind._storing or write_behind._committing)

    def config(self) -> WorkerConfig:
        return self._config

    async def main(self, runtime: Runtime, config: WorkerConfig) -> None:
        """The production service."""
        ports = WorkerPorts(
            thread=SimThread(self, self._random),
            files=HostFiles(self._kvstore, self),
            load=self._load,
            pid=self.life,
            on_stuck=self._on_stuck,
            die_within=lambda seconds: None,  # no thread of its own keeps it
            limits=self._limits,
        )
        service = WorkerService(runtime, config, ports)
        watch_prompts(self, self.pulling)
        await service.serve()

    def on_start(self) -> None:
        self.device = None
        self.spent_ns = 0
        self.arrives_at_ns: dict[tuple[TenantId, SessionId], int] = {}
        self.asked_until_ns: dict[tuple[TenantId, SessionId], int] = {}
        self._has_batches = False
        super().on_start()

    def on_idle(self) -> None:
        if not self._has_batches and self.part("batches") is not None:
            self._has_batches = True
            watch_batches(self.batches)
        super().on_idle()

    def check(self) -> None:
        if self.device is not None:
            check_worker(self.core)

    def on_broken(self, why: str, error: BaseException) -> None:
        if isinstance(error, DeviceLost):
            self.deployment.timeline.note(f"{self.name} ends: {error}")
        else:
            super().on_broken(why, error)

    def die_of_poison(self) -> None:
        """What it computes ends the process; its supervisor starts it again."""
        self.deployment.timeline.note(f"{self.name} is poisoned")
        self.end(RESTART_NS + self.deployment.random.randrange(SECOND))

    async def _load(
        self, config: WorkerConfig, thread: DeviceThread, on_moved: Callable[[str], OnMoved]
    ) -> AsyncIterator[TextModel | OneshotModel | LoadableOneshot]:
        del thread
        await asyncio.sleep(self._random.randrange(LOAD_MAX_NS) / SECOND)
        model = self._model
        device = Device(
            self, model, self._hardware, self._num_pages, self._asked_by, self._random,
            on_moved(model.model_id),
        )  # fmt: skip
        yield TextModel(0, device)
        self.device = device
        watch_engine(self, self.core)
        self.core.estimates.load_bytes_per_s = model.page_bytes * SECOND / device.mover.page_ns
        _teach(self.core.costs, model, has_rows=self._config.prefill_admission == "deferred")
        if config.oneshot_bytes:
            yield LoadableOneshot(job_card(), self._load_oneshot)
        else:
            yield SimOneshot(self)

    def _load_oneshot(self) -> OneshotModel:
        wait_ns(self._orders.randrange(LOAD_MAX_NS))
        return SimOneshot(self)

    def _on_stuck(self, why: str) -> None:
        self.deployment.timeline.note(f"{self.name} is stuck: {why}")
        self.end(RESTART_NS)

    def _draw_config(self, number: int) -> WorkerConfig:
        deployment, step_ns = self.deployment, self._model.step_ns
        random = deployment.random
        admissions = Random(f"admission {step_ns} {len(deployment.fault_kinds)} {number}")
        admission = admissions.choice(ADMISSIONS)
        target_ns = admissions.choice(TARGET_STEPS) * step_ns
        lora_start = admissions.choice(LORA_STARTS)
        self._orders = admissions
        is_on_order = deployment.num_shards == 1 and admissions.random() < ON_ORDER_SHARE
        return WorkerConfig(  # type: ignore[call-arg]
            host_id=self.host_id,
            instance=str(number),
            prefill_tokens_max=random.choice([3, 8, 16]),
            turns_running_max=random.choice([2, 4, 16]),
            prefill_admission=admission,
            slo_ttft_ms=target_ns / MS if admission == "deferred" else 0,
            lora_start=lora_start,
            oneshot_bytes=2 * MODEL_BYTES if is_on_order else 0,
            eviction=deployment.eviction,
            report_interval_ms=deployment.report_interval_ms,
        )


def _teach(costs: StepCosts, model: Model, *, has_rows: bool) -> None:
    """What it would know of its speed if turns were longer.

    Args:
        has_rows: of steps with several rows, too.
    """
    for number in range(1, STEPS_KNOWN + 1):
        rows = number if has_rows else 1
        costs.on_step(0, rows, model.step_ns + (rows - 1) * model.token_ns)
    costs.on_step(TOKENS_KNOWN, 0, model.step_ns + TOKENS_KNOWN * model.token_ns)
