"""What a running deployment leaves in its data folder for `down`, `status` and `chat` to find.

``run.lock`` is held locked by the supervisor for as long as it lives, so the kernel knows whether a
deployment runs; ``run.json`` says where it is and is replaced as a whole.
"""

import fcntl
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from cli.base.called import hint
from shared.errors import ConfigError, NotFound
from shared.private import make_new
from shared.runtime.access import NatsAccess, RedisAccess

LOCK_PATIENCE_S = 1.0
DEFAULT_DATA_DIR = Path("~/.symphony")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningService:
    """One child of the deployment."""

    name: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A deployment as its supervisor last wrote it down.

    Attributes:
        pid: the supervisor's.
        state: ``starting``, ``ready`` or ``stopping``.
        host_id: of its first host.
        num_hosts: how many it is to run; num_workers: on all of them together.
        services: the children that run now.
        names: of all children that should.
        failing: of those that do not, because they keep dying; they are tried again and again.
        silent: of those that run, which do not answer any more.
        nats_access, redis_access: beside their addresses.
        http_cert_file: of the frontend; None: it speaks no TLS.
        restarts: whether a child that ends is started again.
    """

    pid: int
    state: str
    url: str
    nats_url: str
    redis_url: str
    host_id: str
    num_workers: int
    services: list[RunningService]
    num_hosts: int = 1
    names: list[str] = field(default_factory=list)
    failing: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    nats_access: NatsAccess = field(default_factory=NatsAccess)
    redis_access: RedisAccess = field(default_factory=RedisAccess)
    http_cert_file: Path | None = None
    restarts: bool = True


_ADAPTER = TypeAdapter(RunState)


def is_called(process: str, asked: str) -> bool:
    """Whether a process goes by a name, which may be its kind's.

    >>> [is_called("worker-0", name) for name in ("worker", "worker-0", "work")]
    [True, True, False]
    """
    return process == asked or process.startswith(f"{asked}-")


def write_run_state(data_dir: Path, state: RunState) -> None:
    """Replace ``run.json``; a reader sees the old one or the new one. Others than its owner see
    none: the addresses in it may hold passwords.
    """
    path = data_dir / "run.json"
    temporary = path.with_suffix(".json.new")
    with open(make_new(temporary), "wb") as file:
        file.write(_ADAPTER.dump_json(state, indent=2) + b"\n")
    temporary.rename(path)


def read_run_state(data_dir: Path) -> RunState | None:
    """What the last supervisor wrote, or None when there is nothing of this release."""
    try:
        return _ADAPTER.validate_json((data_dir / "run.json").read_bytes())
    except (OSError, ValidationError):
        return None


def remove_run_state(data_dir: Path) -> None:
    """The deployment has stopped."""
    (data_dir / "run.json").unlink(missing_ok=True)


def running_deployment(data_dir: Path) -> RunState:
    """The deployment that runs on `data_dir`.

    Raises:
        NotFound: none does.
    """
    state = read_run_state(data_dir)
    if state is None or not is_locked(data_dir):
        raise NotFound(f"nothing runs on {data_dir}: start it with `{hint('up')}`")
    return state


def is_locked(data_dir: Path) -> bool:
    """Whether a supervisor lives on `data_dir`."""
    try:
        file_number = os.open(data_dir / "run.lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file_number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file_number)
    return False


def check_free(data_dir: Path) -> None:
    """See that no deployment runs on `data_dir`. Nothing is left there by looking.

    Raises:
        ConfigError: one does.
    """
    if (data_dir / "run.lock").exists():
        os.close(take_lock(data_dir))


def take_lock(data_dir: Path) -> int:
    """Become the supervisor of `data_dir` until the returned file is closed or the process ends.

    Raises:
        ConfigError: another deployment runs on it.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    file_number = os.open(data_dir / "run.lock", flags, 0o600)
    deadline = time.monotonic() + LOCK_PATIENCE_S  # a look by `status` holds it for an instant
    while True:
        try:
            fcntl.flock(file_number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file_number
        except BlockingIOError:
            if time.monotonic() >= deadline:
                break
            time.sleep(0.05)
    os.close(file_number)
    state = read_run_state(data_dir)
    where = "" if state is None else f" at {state.url} (pid {state.pid})"
    raise ConfigError(
        f"a deployment already runs on {data_dir}{where}: stop it with `{hint('down')}`, "
        "or give this one another --data-dir"
    )
