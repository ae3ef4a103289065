"""A whole house, started as a user starts it, for tests that look at it from outside."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from openai import OpenAI
from redis import Redis

from cli.inspection.description import describe
from cli.inspection.snapshot import look
from cli.runfile import RunState, read_run_state
from cli.start.plan import ROOT
from cli.supervisor.children import free_port
from shared.ids import DEFAULT_TENANT

START_TIMEOUT_S = 300.0  # in a new environment its worker compiles kernels first
STOP_TIMEOUT_S = 30.0
POLL_S = 0.05
# Workers and kvstores are started again and again: each fills its pages with zeros first.
SMALL = {"SYMPHONY_KV_BYTES": str(1 << 28), "SYMPHONY_ARENA_BYTES": str(1 << 27)}
# On a machine that stalls, a worker that died may take a minute to be back.
PATIENT = {"SYMPHONY_SCHEDULER_PLACEMENT_WAIT_S": "120"}


def command(*arguments: str) -> list[str]:
    """The command line of `symphony ARGUMENTS` in the tests' own environment."""
    return [sys.executable, "-P", "-m", "cli.main", *arguments]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a command of the tests runs with: nothing of the tester's own settings."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SYMPHONY_")}
    return {**clean, "PYTHONPATH": str(ROOT), **(extra or {})}


def symphony(
    *arguments: str, timeout_s: float = START_TIMEOUT_S, env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    return subprocess.run(
        command(*arguments),
        env=environment(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def wait_until(
    condition: Callable[[], bool], what: str, timeout_s: float = START_TIMEOUT_S
) -> None:
    """Poll until `condition` holds.

    Raises:
        AssertionError: it did not in time; says `what`.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(POLL_S)


def processes_of(data_dir: Path) -> dict[int, str]:
    """Processes, by pid, whose environment or command line names `data_dir`; not this one."""
    found = {}
    needle = str(data_dir).encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            words = (folder / "cmdline").read_bytes()
            if words and (needle in words or needle in (folder / "environ").read_bytes()):
                found[int(folder.name)] = words.replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it ended meanwhile, or is somebody else's
            continue
    return found


class House:
    """A running house. Use as a context manager: started on entry, stopped on exit, after which
    nothing of it may be left.

    Attributes:
        url: where its frontend is.
        process: the supervisor.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        models: tuple[str | Path, ...] = ("demo",),
        served_names: tuple[str, ...] = (),
        num_hosts: int = 1,
        num_workers: int = 1,
        emulate: str | None = None,
        restart: bool = True,
        num_spares: int = 0,
        num_shards: int = 1,
        adapters: Mapping[str, Path] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._arguments = ["--data-dir", str(data_dir), "--port", str(self.port)]
        self._arguments += ["--hosts", str(num_hosts), "--workers", str(num_workers)]
        self._arguments += ["--spares", str(num_spares), "--shards", str(num_shards)]
        for model in () if emulate else models:
            self._arguments += ["--model", str(model)]
        for name in served_names:
            self._arguments += ["--served-model-name", name]
        if emulate is not None:
            self._arguments += ["--emulate", emulate]
        for name, folder in (adapters or {}).items():
            self._arguments += ["--adapter", f"{name}={folder}"]
        if not restart:
            self._arguments += ["--no-restart"]
        self._env = environment({**SMALL, **PATIENT, **(env or {})})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            print(self.logs())  # pytest shows it with the failure
        self.stop()

    def start(self) -> None:
        """Start it, again if it was stopped, and wait until a turn can be served."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with (self.data_dir / "up.log").open("ab") as log:
            self.process = subprocess.Popen(
                command("up", *self._arguments),
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            wait_until(self._is_ready_or_ended, "the house is ready")
            assert self.process.poll() is None, "it ended instead"
        except BaseException:
            print(self.logs())  # pytest shows it with the failure
            self.process.kill()
            self.process.wait()
            raise

    def stop(self) -> None:
        """Stop it as Ctrl-C does; nothing of it is left."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(STOP_TIMEOUT_S)
        self.assert_gone()

    def assert_gone(self) -> None:
        """No process refers to the data folder any more."""
        wait_until(
            lambda: not processes_of(self.data_dir),
            f"everything has ended: {processes_of(self.data_dir)}",
            STOP_TIMEOUT_S,
        )

    @property
    def run(self) -> RunState:
        """What the supervisor last wrote down."""
        state = read_run_state(self.data_dir)
        assert state is not None, "nothing runs"
        return state

    def pids(self) -> dict[str, int]:
        """Pids of the children by name: nats, redis, kvstore, scheduler, tracker, worker-0, ...,
        frontend.
        """
        return {child.name: child.pid for child in self.run.services}

    def client(self) -> OpenAI:
        """OpenAI's own client of this house; close it. It retries nothing, so that a test sees
        every failure.
        """
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def nkey(self, tenant: str = DEFAULT_TENANT) -> str:
        """The file with which a tenant connects to the house's NATS."""
        return str(self.data_dir / "credentials" / f"tenant-{tenant}.nk")

    def redis(self) -> Redis:
        """A client of the house's Redis; close it."""
        return Redis.from_url(
            self.run.redis_url, **self.run.redis_access.options(self.run.redis_url)
        )

    def look(self) -> dict[str, Any]:
        """The object of `status`, without starting a process for it; for polling."""
        return describe(self.run, look(self.run))

    def status(self) -> dict[str, Any]:
        """What ``symphony status --json`` says."""
        done = symphony("status", "--json", "--data-dir", str(self.data_dir))
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a child; returns the pid it had."""
        pid = self.pids()[name]
        os.kill(pid, number)
        return pid

    def wait_restarted(self, name: str, old_pid: int) -> int:
        """Wait until `name` runs again as another process and says that it is ready; its pid."""

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
        """Wait until every process is known to be well."""
        wait_until(lambda: self.look()["state"] == "ready", "everybody is well again")

    def logs(self) -> str:
        """Everything that was logged, for a failure's message."""
        paths = [self.data_dir / "up.log", *sorted((self.data_dir / "logs").glob("*.log"))]
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-4000:]}"
            for path in paths
            if path.exists()
        )

    def _is_ready_or_ended(self) -> bool:
        if self.process.poll() is not None:
            return True
        state = read_run_state(self.data_dir)
        return state is not None and (state.pid, state.state) == (self.process.pid, "ready")

    def _is_healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=2.0).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False
