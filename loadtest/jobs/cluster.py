"""A scheduler, or several, and emulated workers: real processes on a NATS server of their own."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from cli.supervisor.children import free_port, start_child, start_nats, stop_child, wait_for_port
from loadtest.jobs.order import Order, Outcome, read_outcome
from loadtest.policies import path_of
from loadtest.simulator.models import SimModel
from shared.bus import Bus
from shared.errors import PeerUnavailable
from shared.ids import WorkerId
from shared.messages import BatchDone, WorkerReport
from shared.settings import as_variables
from shared.subjects import BATCH_DONE, WORKER_REPORT

START_TIMEOUT_S = 120.0
STOP_GRACE_S = 10.0


class Cluster:
    """The processes, and what their workers tell. Make with `open_cluster`.

    Attributes:
        pids: of every process, by name.
        bus: a connection of the benchmark's own.
    """

    def __init__(self, directory: Path, nats_url: str, bus: Bus) -> None:
        self.nats_url = nats_url
        self.pids: dict[str, int] = {}
        self._directory = directory
        self.bus = bus
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._ready: set[WorkerId] = set()
        self._dones: list[tuple[int, BatchDone]] = []

    async def listen(self) -> None:
        """Hear the workers."""
        await self.bus.subscribe(WORKER_REPORT, self._on_report)
        await self.bus.subscribe(BATCH_DONE, self._on_done)
        await self.bus.flush()

    def start(self, name: str, command: Sequence[str], **settings: str) -> None:
        """Start a process; `settings` are its ``SYMPHONY_...`` variables."""
        env = {
            **os.environ,
            "SYMPHONY_NATS_URL": self.nats_url,
            "SYMPHONY_DATA_DIR": str(self._directory),
            "SYMPHONY_HOST_ID": "bench",
            "SYMPHONY_LOG_LEVEL": "warning",
            "SYMPHONY_METRICS_PORT": "0",
            **as_variables(settings, os.environ),
        }
        log_path = self._directory / f"{name}.log"
        child = start_child([sys.executable, *command], log_path=log_path, env=env)
        self._children[name] = child
        self.pids[name] = child.pid

    @property
    def workers(self) -> list[WorkerId]:
        """Who can be given batches."""
        return sorted(self._ready)

    def kill(self, name: str) -> None:
        """End a process without a word to it."""
        child = self._children.pop(name)
        del self.pids[name]
        child.kill()
        child.wait()

    async def wait_ready(self, num_workers: int) -> None:
        """Return when so many workers can be given batches.

        Raises:
            PeerUnavailable: a process ended, or it takes too long.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while len(self._ready) < num_workers:
            self._check()
            if time.monotonic() > deadline:
                raise PeerUnavailable(f"{len(self._ready)} of {num_workers} workers became ready")
            await asyncio.sleep(0.05)

    async def drive(self, order: Order) -> tuple[Outcome, list[tuple[int, BatchDone]]]:
        """Let a driver process send an order; its outcome, and the ends of batches meanwhile with
        the monotonic instants at which they were heard of.

        Raises:
            PeerUnavailable: a process ended.
        """
        self._dones.clear()
        order_path, outcome_path = self._directory / "order.npz", self._directory / "outcome.npz"
        outcome_path.unlink(missing_ok=True)
        order.write(order_path)
        self.start("driver", ["-m", "loadtest.jobs.driver", str(order_path), str(outcome_path)])
        driver = self._children.pop("driver")
        del self.pids["driver"]
        try:
            while driver.poll() is None:
                self._check()
                await asyncio.sleep(0.1)
        finally:
            stop_child(driver)
        if driver.returncode:
            raise PeerUnavailable(f"the driver: {self._last_words('driver')}")
        return read_outcome(outcome_path), list(self._dones)

    def close(self) -> None:
        """Stop everything."""
        for child in self._children.values():
            child.terminate()
        for child in self._children.values():
            stop_child(child, STOP_GRACE_S)

    def _check(self) -> None:
        for name, child in self._children.items():
            if (code := child.poll()) is not None:
                raise PeerUnavailable(f"{name} ended with status {code}: {self._last_words(name)}")

    def _last_words(self, name: str) -> str:
        lines = (self._directory / f"{name}.log").read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it logged nothing"

    def _on_report(self, report: WorkerReport) -> None:
        if report.state == "ready":
            self._ready.add(report.worker_id)

    def _on_done(self, done: BatchDone) -> None:
        self._dones.append((time.monotonic_ns(), done))


@asynccontextmanager
async def open_cluster(
    models: Sequence[SimModel],
    num_gpus: int,
    *,
    policy: str,
    num_shards: int = 1,
    profile: Path | None = None,
) -> AsyncIterator[Cluster]:
    """NATS, the scheduler and one emulated worker a GPU, ready.

    Args:
        num_shards: more than 1: so many scheduler shards, and a rank process.
        profile: where the (first) scheduler writes what `cProfile` saw of it, when it ends.
    """
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="symphony-emulated-")
        directory = Path(stack.enter_context(temporary))
        port = free_port()
        nats = start_nats(port, directory / "nats")
        stack.callback(stop_child, nats)
        wait_for_port(nats, port, "nats")
        nats_url = f"nats://127.0.0.1:{port}"
        bus = await Bus.connect(nats_url, "bench")
        cluster = Cluster(directory, nats_url, bus)
        cluster.pids["nats"] = nats.pid
        stack.callback(cluster.close)
        await cluster.listen()
        _start_schedulers(cluster, policy, num_shards, profile)
        _start_workers(cluster, models, num_gpus)
        await cluster.wait_ready(num_gpus)
        yield cluster
        await bus.drain()


def _start_schedulers(cluster: Cluster, policy: str, num_shards: int, profile: Path | None) -> None:
    command = ["-m", "services.scheduler"]
    profiled = ["-m", "cProfile", "-o", str(profile), *command] if profile else command
    if num_shards == 1:
        cluster.start("scheduler", profiled, batch_policy=path_of(policy), instance="scheduler")
        return
    cluster.start("rank", command, scheduler_role="rank")
    for shard in range(num_shards):
        cluster.start(
            f"shard-{shard}",
            profiled if shard == 0 else command,
            scheduler_role="shard",
            scheduler_shard=str(shard),
            batch_policy=path_of(policy),
            instance=str(shard),
        )


def _start_workers(cluster: Cluster, models: Sequence[SimModel], num_gpus: int) -> None:
    emulate = ",".join(f"linear:{m.name}:{m.alpha_ms:g}:{m.beta_ms:g}:{m.slo_ms:g}" for m in models)
    for number in range(num_gpus):
        cluster.start(
            f"worker-{number}",
            ["-m", "services.worker"],
            emulate=emulate,
            instance=str(number),
            write_behind="false",
        )
