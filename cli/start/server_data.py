"""What the deployment's own servers keep on disk, and what is done where it is damaged.

A server that ends before it was ready, by itself, may have been unable to read its data. Then what
can be read is kept, if the server has a tool for that; else the data is set aside, and the server
starts without. If it ends like that even then, it was not the data, which is put back. Nothing is
ever deleted but older data that was set aside.
"""

import logging
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cli.base.children import find_redis_server

log = logging.getLogger(__name__)

ASIDE = ".damaged-"  # in the name of what was set aside, before the time
ASIDE_MAX = 2  # of one name
CHECK_TIMEOUT_S = 120.0
FREE_BYTES_MIN = 1024 * 1024
LOG_BYTES_MAX = 1024 * 1024
# What a server that cannot read its data may die of, beside an exit status.
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
REDIS_CHECK = "redis-check-aof"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerData:
    """Attributes:
    folder: the server's own.
    names: of the files and folders in it that hold the data.
    lost: what is lost with it, in words.
    ready: what the server logs when it has read its data.
    notices: what it logs when it has dropped some of it by itself.
    fix: makes the damaged data readable, in part; False: it cannot.
    """

    folder: Path
    names: tuple[str, ...]
    lost: str
    ready: bytes
    notices: tuple[bytes, ...] = ()
    fix: Callable[[Path], bool] = lambda path: False


def redis_data(folder: Path) -> ServerData:
    """Of a redis-server in this folder: its append-only file, in one part or several."""
    return ServerData(
        folder=folder,
        names=("appendonly.aof", "appendonlydir", "dump.rdb"),
        lost="session records and stored responses",
        ready=b"eady to accept connections",
        notices=(b"Truncating the AOF", b"AOF loaded anyway"),
        fix=fix_append_only,
    )


def nats_data(folder: Path) -> ServerData:
    """Of a nats-server in this folder: what JetStream keeps. It repairs or drops single files."""
    return ServerData(
        folder=folder,
        names=("jetstream",),
        lost="leases, which are taken again",
        ready=b"Server is ready",
        notices=(b"Filestore [", b"checksums do not match", b"Missing stream", b"Error recreating"),
    )


class DataRescue:
    """Looks after one server's data, from start to start.

    Args:
        log_path: where the server logs, behind what was there before.
    """

    def __init__(self, name: str, data: ServerData, log_path: Path) -> None:
        self._name = name
        self._data = data
        self._log_path = log_path
        self._log_at = 0
        self._is_fixed = False
        self._is_innocent = False  # the server does not start without its data either
        self._moved: list[tuple[Path, Path]] = []  # from, to

    def on_started(self) -> None:
        """The server begins to read its data."""
        with suppress(OSError):
            self._log_at = self._log_path.stat().st_size

    def notice(self) -> str | None:
        """What is to be said of data that the server dropped by itself since it started."""
        lines = self._logged().split(b"\n")
        for line in lines:
            if any(words in line for words in self._data.notices):
                said = line.decode(errors="replace").strip()
                return f"{self._name}: some of its data was damaged, and is lost: {said}"
        return None

    def on_exit(self, code: int) -> str | None:
        """The server ended unasked. What was done for its data, so that it is
        to be started again at once; None: nothing.
        """
        if self._data.ready in self._logged():
            self._is_fixed, self._is_innocent, self._moved = False, False, []
            return None
        if not (code > 0 or -code in CRASHES) or b"OUT OF MEMORY" in self._logged().upper():
            return None
        try:
            if shutil.disk_usage(self._data.folder).free < FREE_BYTES_MIN:
                return None  # nothing is known of its data
            return self._rescue()
        except OSError as error:
            log.warning("damaged data stays", extra={"server": self._name, "error": str(error)})
            return None

    def _rescue(self) -> str | None:
        if self._moved:
            self._put_back()
            self._is_innocent = True
        if self._is_innocent:
            return None
        present = [path for name in self._data.names if _exists(path := self._data.folder / name)]
        if not present:
            return None
        if not self._is_fixed:
            self._is_fixed = True
            if (said := self._fix(present[0])) is not None:
                return said
        for path in present:
            aside = _aside(path)
            path.rename(aside)
            self._moved.append((path, aside))
        kept = ", ".join(str(aside) for _, aside in self._moved)
        return (
            f"{self._name} cannot read its data, and starts without: {self._data.lost} are lost; "
            f"the data is kept as {kept}"
        )

    def _fix(self, path: Path) -> str | None:
        """Keep what can be read; None: nothing can, and the data is as it was."""
        aside = _aside(path)
        try:
            copy = shutil.copytree if path.is_dir() else shutil.copy2
            copy(path, aside)
        except OSError:  # there is no room for two
            _remove(aside)
            return None
        if self._data.fix(path):
            return (
                f"{self._name}: its data was damaged: what was written after the damage of "
                f"{self._data.lost} is lost; the damaged data is kept as {aside}"
            )
        _remove(path)
        aside.rename(path)
        return None

    def _put_back(self) -> None:
        for path, aside in self._moved:
            _remove(path)
            aside.rename(path)
        self._moved = []

    def _logged(self) -> bytes:
        """What the server has logged since it started, or the end of that."""
        try:
            with self._log_path.open("rb") as file:
                size = file.seek(0, 2)
                begin = self._log_at if self._log_at <= size else 0  # it was emptied meanwhile
                file.seek(max(begin, size - LOG_BYTES_MAX))
                return file.read()
        except OSError:
            return b""


def fix_append_only(path: Path) -> bool:
    """Cut Redis' append-only file where it cannot be read any more, by its own tool."""
    if path.is_dir():
        path = path / "appendonly.aof.manifest"
    if not path.is_file():
        return False
    server = find_redis_server()
    tool = shutil.which(REDIS_CHECK)
    # The packaged server is its own tool, by the name under which it is called.
    command, executable = ([tool], tool) if tool is not None else ([REDIS_CHECK], server)
    if tool is None and shutil.which("redis-server") == server:
        return False
    before = _sizes(path)
    try:
        done = subprocess.run(
            [*command, "--fix", str(path)],
            executable=executable,
            input=b"y\ny\n",
            capture_output=True,
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and _sizes(path) not in (before, 0)


def _sizes(path: Path) -> int:
    """Bytes of a file, and of those beside it if it is one of several parts."""
    parts = path.parent.iterdir() if path.suffix == ".manifest" else [path]
    return sum(part.stat().st_size for part in parts)


def _aside(path: Path) -> Path:
    """Where to set something aside. Of what was set aside before, the oldest goes."""
    earlier = sorted(path.parent.glob(f"{path.name}{ASIDE}*"))
    for each in earlier[: max(0, len(earlier) - ASIDE_MAX + 1)]:
        _remove(each)
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    aside = path.with_name(f"{path.name}{ASIDE}{stamp}")
    number = 0
    while _exists(aside):
        number += 1
        aside = path.with_name(f"{path.name}{ASIDE}{stamp}.{number}")
    return aside


def _exists(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
