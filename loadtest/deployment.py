"""Starts deployments for tests, benchmarks and demonstrations, by the command that users type."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import nats
from nats.aio.client import Client

from cli.base.children import free_port, python_path, start_child
from cli.base.runfile import RunState, read_run_state, running_deployment
from cli.down import clear_away
from cli.start.credentials import nkey_file
from cli.supervisor.deployment import last_line
from loadtest.starting import READY_TIMEOUT_S, Waiting
from shared.errors import PeerUnavailable
from shared.ids import DEFAULT_TENANT, TenantId

MODEL = "demo"
MODEL_OPTIONS = {"--model", "--emulate", "--no-worker"}  # options that say what workers serve
STOP_TIMEOUT_S = 30.0
POLL_S = 0.05
UP_LOG = "up.log"


def command(*arguments: str) -> list[str]:
    """The command line of `symphony ARGUMENTS` in this process's environment."""
    return [sys.executable, "-P", "-m", "cli.main", *arguments]


def environment(settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables of a command: this process's without the user's settings of Symphony, and
    `settings`.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SYMPHONY_")}
    return {**clean, "PYTHONPATH": python_path(clean), **(settings or {})}


def symphony(
    *arguments: str, timeout_s: float = READY_TIMEOUT_S, env: Mapping[str, str] | None = None
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
    condition: Callable[[], bool], what: str, timeout_s: float = READY_TIMEOUT_S
) -> None:
    """Poll until `condition` holds.

    Raises:
        PeerUnavailable: it did not in time; says `what`.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            raise PeerUnavailable(f"not within {timeout_s:g} s: {what}")
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
        except OSError:  # it ended meanwhile, or belongs to another user
            continue
    return found


class Deployment:
    """A deployment that `symphony up` starts. A context manager: started on entry, stopped on exit,
    after which no process, socket or shared memory of it is left. It also ends with this process.

    Attributes:
        port: of its frontend, on loopback.
        process: the supervisor, once it is started.
    """

    process: "subprocess.Popen[bytes]"

    def __init__(
        self, data_dir: Path, *options: str, settings: Mapping[str, str] | None = None
    ) -> None:
        """Args:
        options: of `up`; if they do not say what workers serve, it is the demo model.
        settings: variables of the services.
        """
        self.data_dir = data_dir
        self.port = free_port()
        model = () if MODEL_OPTIONS & set(options) else ("--model", MODEL)
        self._options = (*model, *options)
        self._where = ("--data-dir", str(data_dir), "--port", str(self.port))
        self._environment = environment(settings)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, again if it was stopped, and wait until a turn can be served.

        Raises:
            PeerUnavailable: it ended, or is not ready in time. Nothing of it is left running.
        """
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.logs.mkdir(exist_ok=True, mode=0o700)
        self.process = start_child(
            command("up", *self._where, *self._options),
            log_path=self.logs / UP_LOG,
            env=self._environment,
        )
        try:
            waiting = Waiting("the deployment is ready")
            while not self._is_ready_or_ended():
                waiting.check()
                time.sleep(POLL_S)
            if self.process.poll() is not None:
                why = last_line(self.logs / UP_LOG)
                raise PeerUnavailable(f"the deployment ended before it was ready: {why}")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop it as Ctrl-C does, or kill it if it does not stop in time.

        Raises:
            PeerUnavailable: a process of it is left.
        """
        with _uninterrupted():
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()  # the kernel kills its children with it
                self.process.wait()
            self.wait_gone()
            clear_away(self.data_dir, None)

    def wait_gone(self) -> None:
        """Wait until no process refers to the data folder any more."""
        wait_until(lambda: not processes_of(self.data_dir), "every process has ended", 30.0)

    @property
    def url(self) -> str:
        """Address of its frontend."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def logs(self) -> Path:
        """Folder of its processes' logs."""
        return self.data_dir / "logs"

    @property
    def run(self) -> RunState:
        """What the supervisor last wrote down.

        Raises:
            NotFound: nothing runs.
        """
        return running_deployment(self.data_dir)

    def pids(self) -> dict[str, int]:
        """Pids of its processes by name: nats, redis, kvstore, scheduler, tracker, worker-0, ...,
        frontend.
        """
        return {child.name: child.pid for child in self.run.services}

    def nkey(self, tenant: TenantId = DEFAULT_TENANT) -> str:
        """The file with which a tenant connects to its NATS."""
        return str(nkey_file(self.data_dir / "credentials", tenant))

    @asynccontextmanager
    async def nats(self, tenant: TenantId = DEFAULT_TENANT) -> AsyncIterator[Client]:
        """A plain client of its NATS, as an agent framework of this tenant has one. Its inboxes
        begin with ``_INBOX.`` and the tenant.
        """
        client = await nats.connect(
            self.run.nats_url, nkeys_seed=self.nkey(tenant), inbox_prefix=f"_INBOX.{tenant}"
        )
        try:
            yield client
        finally:
            await client.close()

    def _is_ready_or_ended(self) -> bool:
        if self.process.poll() is not None:
            return True
        state = read_run_state(self.data_dir)
        return state is not None and (state.pid, state.state) == (self.process.pid, "ready")


@contextmanager
def deployed(*options: str, settings: Mapping[str, str] | None = None) -> Iterator[Deployment]:
    """A deployment in a temporary data folder; for its arguments see `Deployment`.

    Raises:
        PeerUnavailable: it did not start.
    """
    with (
        tempfile.TemporaryDirectory(prefix="symphony-") as folder,
        Deployment(Path(folder), *options, settings=settings) as deployment,
    ):
        yield deployment


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore requests to stop: what the body does has an end of its own."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
