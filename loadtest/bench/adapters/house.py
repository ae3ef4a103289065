"""A house as `up` makes it, with its worker started by hand: so that its metrics can be read."""

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cli.inspection.snapshot import look
from cli.runfile import running_deployment
from cli.start.options import DeploymentOptions
from cli.start.plan import ChildPlan, plan_deployment
from cli.supervisor.children import free_port, start_child, stop_child
from cli.supervisor.deployment import last_line
from loadtest.bench.adapters.worker_metrics import WorkerMetrics, read_metrics
from loadtest.deployment import Deployment, deployed
from loadtest.jobs.processes import Memory, memory_of
from shared.errors import PeerUnavailable
from shared.settings import as_variables

WORKER = "worker-0"
WATCHED = ("worker-0", "kvstore", "scheduler", "frontend")
READY_WITHIN_S = 300.0
POLL_S = 0.2
REPORTS_S = 1.5  # figures are told with reports, every half second
STOP_GRACE_S = 15.0


@dataclass(frozen=True, slots=True)
class AdapterHouse:
    """Attributes:
    metrics_port: of the worker.
    """

    house: Deployment
    metrics_port: int
    _worker: "subprocess.Popen[bytes]"
    _plan: ChildPlan

    @property
    def port(self) -> int:
        """Of its frontend."""
        return self.house.port

    def pids(self) -> dict[str, int]:
        """Of all its processes, by name."""
        return {**self.house.pids(), WORKER: self._worker.pid}

    def memory(self) -> dict[str, Memory]:
        """What those take that serve turns.

        Raises:
            PeerUnavailable: one of them is not there.
        """
        self.check()
        pids = self.pids()
        try:
            return {name: memory_of(pids[name]) for name in WATCHED}
        except (OSError, KeyError) as error:
            raise PeerUnavailable(f"a process of the house is gone: {error}") from None

    async def worker_metrics(self) -> WorkerMetrics:
        """What the worker has counted, with all that has ended by now.

        Raises:
            PeerUnavailable: it is gone.
        """
        await asyncio.sleep(REPORTS_S)
        self.check()
        try:
            return await asyncio.to_thread(read_metrics, self.metrics_port)
        except urllib.error.URLError as error:
            raise PeerUnavailable(f"the worker's metrics: {error.reason}") from None

    def check(self) -> None:
        """See that the worker lives.

        Raises:
            PeerUnavailable: it does not.
        """
        if (code := self._worker.poll()) is not None:
            why = last_line(self._plan.log_path)
            raise PeerUnavailable(f"the worker ended with status {code}: {why}")


@contextmanager
def open_adapter_house(
    model: str, settings: Mapping[str, str], worker_settings: Mapping[str, str]
) -> Iterator[AdapterHouse]:
    """A house of its own with one worker that serves `model`, stopped and removed at the end.

    Args:
        model: a folder or hub id.
        settings: variables of all its services.

    Raises:
        PeerUnavailable: it did not come up.
    """
    with deployed("--no-worker", settings=settings) as house:
        plan = _worker_plan(house, model, settings)
        metrics_port = free_port()
        env = {
            **plan.environment,
            **worker_settings,
            "SYMPHONY_METRICS_PORT": str(metrics_port),
        }
        command = [sys.executable, "-P", "-m", "services.worker"]
        worker = start_child(command, log_path=plan.log_path, env=env)
        opened = AdapterHouse(house, metrics_port, worker, plan)
        try:
            _wait_ready(opened)
            yield opened
        finally:
            stop_child(worker, STOP_GRACE_S)


def _worker_plan(house: Deployment, model: str, settings: Mapping[str, str]) -> ChildPlan:
    """The worker that `up` would start."""
    directory = Path(house.data_dir).resolve()
    options = DeploymentOptions(data_dir=directory, models=(model,), port=house.port)
    nats_port = urlsplit(running_deployment(directory).nats_url).port
    assert nats_port is not None
    plan = plan_deployment(options, nats_port, os.environ | dict(settings))
    return next(child for child in plan.services if child.name == WORKER)


def _wait_ready(house: AdapterHouse) -> None:
    """Until turns would be placed on the worker, and the frontend answers for its model."""
    run = running_deployment(house.house.data_dir)
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        house.check()
        snapshot = look(run)
        if snapshot is not None and snapshot.num_ready_workers() and not snapshot.models_missing():
            return
        time.sleep(POLL_S)
    raise PeerUnavailable(f"the worker was not ready within {READY_WITHIN_S:g} s")


def adapter_settings(sources: Path, disk_bytes: int) -> dict[str, str]:
    """Settings of a house that takes any number of adapters from a folder."""
    return {
        "SYMPHONY_ADAPTER_DIRS": json.dumps([str(sources)]),
        "SYMPHONY_TENANT_ADAPTER_BYTES_MAX": "0",
        **as_variables({"adapters_max": "0", "tenant_adapters_max": "0"}),
        "SYMPHONY_ADAPTER_DISK_BYTES_MAX": "0",
        "SYMPHONY_DISK_BYTES_MAX": str(disk_bytes),
    }
