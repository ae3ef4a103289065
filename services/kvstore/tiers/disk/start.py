"""The disk at the start: checked by a process of its own, set aside if it does not pass."""

import logging
import mmap
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb

import services
from services.kvstore.tiers.disk import (
    ASIDE_NAME,
    DATA_NAME,
    Disk,
    Scan,
    Slots,
    set_aside,
    throw_away,
)
from services.kvstore.tiers.disk.check import EXIT_OUTDATED, EXIT_REFUSED, unpack_scan

log = logging.getLogger(__name__)

CHECK_LIMIT_MIN_S = 60.0
CHECK_BYTES_PER_S = 16 * 1024**2  # a slow disk that reads a header here and there manages this
_CHECK = "services.kvstore.tiers.disk.check"
_PACKAGES = Path(services.__path__[0]).parent
_STOPPED = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM})


class DatabaseDamaged(Exception):
    """The check did not pass."""


class DatabaseOutdated(Exception):
    """It is another release's."""


@dataclass(frozen=True, slots=True)
class Started:
    """An open disk, what is on it, and whether it had to be reset."""

    disk: Disk
    scan: Scan
    was_reset: bool


def start_disk(folder: Path, bytes_max: int) -> Started:
    """Open or make the database in `folder`. A damaged one is set aside, another release's is
    removed: everything in it can be computed again.

    Raises:
        OSError, lmdb.Error: no database can be opened or made there.
    """
    was_reset = False
    scan = Scan()
    slots: Slots | None = None
    try:
        if (folder / DATA_NAME).exists():
            scan = check(folder, bytes_max, check_limit_s((folder / DATA_NAME).stat().st_size))
            if scan.num_deleted:
                log.warning("blocks without pages deleted", extra={"blocks": scan.num_deleted})
            slots = scan.slots
        disk = Disk(folder, bytes_max, slots)
    except (DatabaseOutdated, lmdb.VersionMismatchError) as error:
        log.warning("the KV database is another release's and is reset", extra={"why": str(error)})
        throw_away(folder)
        disk, scan, was_reset = Disk(folder, bytes_max), Scan(), True
    except (DatabaseDamaged, lmdb.CorruptedError, lmdb.InvalidError) as error:
        log.error(
            "the KV database is damaged and is reset",
            extra={"error": str(error), "aside": str(folder / ASIDE_NAME)},
        )
        set_aside(folder)
        disk, scan, was_reset = Disk(folder, bytes_max), Scan(), True
    return Started(disk, scan, was_reset)


def check_limit_s(num_bytes: int) -> float:
    """How long the check of a file of this size may take.

    >>> check_limit_s(0), check_limit_s(16 * 1024**3)
    (60.0, 1084.0)
    """
    return CHECK_LIMIT_MIN_S + num_bytes / CHECK_BYTES_PER_S


def check(folder: Path, bytes_max: int, limit_s: float) -> Scan:
    """What is in the database, found by a process of its own.

    Raises:
        DatabaseDamaged: that process failed, or did not end in `limit_s`.
        DatabaseOutdated: the database is another release's.
        OSError: the files may not be opened.
    """
    ended = _run_check(folder, bytes_max, limit_s)
    if -ended.returncode in _STOPPED:  # a signal from outside says nothing of the database
        ended = _run_check(folder, bytes_max, limit_s)
    error = ended.stderr.decode(errors="replace").strip()[-500:]
    if ended.returncode == EXIT_REFUSED:
        raise OSError(error)
    if ended.returncode == EXIT_OUTDATED:
        raise DatabaseOutdated(error)
    if ended.returncode < 0:
        raise DatabaseDamaged(f"{signal.Signals(-ended.returncode).name} in its check: {error}")
    if ended.returncode:
        raise DatabaseDamaged(error)
    try:
        return unpack_scan(ended.stdout or b"")
    except ValueError as error:
        raise DatabaseDamaged(f"its check was cut short: {error}") from None


def _run_check(folder: Path, bytes_max: int, limit_s: float) -> subprocess.CompletedProcess[Any]:
    """Run it to its end. What it says is in memory that it writes and we read: in a pipe, so much
    would be copied again and again."""
    its_stdin, ours = os.pipe()  # by which it sees us end
    said = os.memfd_create("symphony-kv-check")
    try:
        ended: subprocess.CompletedProcess[Any] = subprocess.run(
            [sys.executable, "-m", _CHECK, str(folder.resolve()), str(bytes_max)],
            stdin=its_stdin,
            stdout=said,
            stderr=subprocess.PIPE,
            timeout=limit_s,
            cwd=_PACKAGES,
            start_new_session=True,  # Ctrl-C is for us
            check=False,
        )
        if os.fstat(said).st_size:
            ended.stdout = mmap.mmap(said, 0, prot=mmap.PROT_READ)
        return ended
    except subprocess.TimeoutExpired:
        raise DatabaseDamaged(f"its check took longer than {limit_s:.0f} s") from None
    finally:
        for file in (its_stdin, ours, said):
            os.close(file)
