"""A deployment for tests that look at it from outside: small, patient, and its logs are printed
when a test fails.
"""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from openai import OpenAI
from redis import Redis

from cli.inspection.description import describe
from cli.inspection.snapshot import look
from loadtest.deployment import Deployment, symphony, wait_until

# Workers and kvstores are started again and again: each fills its pages with zeros first.
SMALL = {"SYMPHONY_KV_BYTES": str(1 << 28), "SYMPHONY_ARENA_BYTES": str(1 << 27)}
# On a machine that stalls, a worker that died may take a minute to be back.
PATIENT = {"SYMPHONY_SCHEDULER_PLACEMENT_WAIT_S": "120"}


class Cluster(Deployment):
    """See the module and `Deployment`."""

    def __init__(
        self, data_dir: Path, *options: str, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(data_dir, *options, settings={**SMALL, **PATIENT, **(settings or {})})

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            print(self.log_text())  # pytest shows it with the failure
        super().__exit__(kind, error, trace)

    def start(self) -> None:
        try:
            super().start()
        except BaseException:
            print(self.log_text())
            raise

    def look(self) -> dict[str, Any]:
        """The object of `status`, without starting a process for it; for polling."""
        return describe(self.run, look(self.run))

    def status(self) -> dict[str, Any]:
        """What ``symphony status --json`` prints."""
        done = symphony("status", "--json", "--data-dir", str(self.data_dir))
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a process of it; returns the pid it had."""
        pid = self.pids()[name]
        os.kill(pid, number)
        return pid

    def wait_restarted(self, name: str, old_pid: int) -> int:
        """Wait until `name` runs again as another process that reports to be ready; its pid."""

        def is_back() -> bool:
            if self.pids().get(name, old_pid) == old_pid:
                return False
            return any(
                child["name"] == name and child["state"] in ("ready", "running")
                for child in self.look()["services"]
            )

        wait_until(is_back, f"{name} is back")
        return self.pids()[name]

    def wait_healthy(self) -> None:
        """Wait until the frontend would serve a turn."""
        wait_until(self._is_healthy, "the frontend is healthy")

    def wait_all_ready(self) -> None:
        """Wait until every process is ready."""
        wait_until(lambda: self.look()["state"] == "ready", "every process is ready")

    def log_text(self) -> str:
        """The end of every log."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-4000:]}"
            for path in sorted(self.logs.glob("*.log"))
        )

    def client(self) -> OpenAI:
        """OpenAI's own client of it; close it. It retries nothing, so that a test sees every
        failure.
        """
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def redis(self) -> Redis:
        """A client of its Redis; close it."""
        run = self.run
        return Redis.from_url(run.redis_url, **run.redis_access.options(run.redis_url))

    def _is_healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=2.0).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False


def adapter_options(adapters: Mapping[str, Path]) -> list[str]:
    """Of `up`: adapters by name, each from its folder."""
    return [word for name, folder in adapters.items() for word in ("--adapter", f"{name}={folder}")]
