"""Lease files: a worker keeps its file locked (flock) for as long as it lives, so the kernel
shows its death.
"""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from shared.errors import ConfigError
from shared.ids import WorkerId
from shared.private import make_new

NEVER_LOCKED_POLLS_MAX = 30


@dataclass(slots=True)
class _Lease:
    path: Path
    file_number: int
    was_locked: bool = False
    num_polls_unlocked: int = 0


class LeaseFiles:
    """Lease files of open workers, in one folder.

    A poll holds a file's lock for an instant, so a worker must wait for it (no ``LOCK_NB``).

    Args:
        files: what makes and looks at them.
    """

    def __init__(self, directory: Path, files: "LockedFiles | None" = None) -> None:
        self._directory = directory
        self._files = files or LockedFiles()
        self._leases: dict[tuple[WorkerId, str], _Lease] = {}

    def add(self, worker_id: WorkerId, incarnation: str) -> Path:
        """The file that this incarnation is to lock, again if it did before: until then it may be
        unlocked.
        """
        lease = self._leases.get((worker_id, incarnation))
        if lease is None:
            path = self._directory / f"{worker_id}.{incarnation}.lease"
            lease = _Lease(path, self._files.make(path))
            self._leases[worker_id, incarnation] = lease
        lease.was_locked = False
        lease.num_polls_unlocked = 0
        return lease.path

    def drop(self, worker_id: WorkerId, incarnation: str) -> None:
        """Forget an incarnation and remove its file."""
        if (lease := self._leases.pop((worker_id, incarnation), None)) is not None:
            self._files.remove(lease.path, lease.file_number)

    def poll(self) -> list[tuple[WorkerId, str]]:
        """Incarnations that had locked their file and no longer do, or did not in
        `NEVER_LOCKED_POLLS_MAX` polls.
        """
        return [name for name, lease in self._leases.items() if self._is_abandoned(lease)]

    def close(self) -> None:
        """Drop every lease."""
        for worker_id, incarnation in list(self._leases):
            self.drop(worker_id, incarnation)

    def _is_abandoned(self, lease: _Lease) -> bool:
        if self._files.is_locked(lease.file_number):
            lease.was_locked = True
            return False
        lease.num_polls_unlocked += 1
        return lease.was_locked or lease.num_polls_unlocked >= NEVER_LOCKED_POLLS_MAX


class LockedFiles:
    """Files that processes lock."""

    def make(self, path: Path) -> int:
        """A new file. Returns its number."""
        return make_new(path)

    def is_locked(self, file_number: int) -> bool:
        """Whether a process has it locked now."""
        try:
            fcntl.flock(file_number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(file_number, fcntl.LOCK_UN)
        return False

    def remove(self, path: Path, file_number: int) -> None:
        """Close and remove it."""
        path.unlink(missing_ok=True)
        os.close(file_number)


def lock_directory(directory: Path, variable: str) -> int:
    """Make this process the only kvstore on `directory`, until it ends or closes the returned file.

    Raises:
        ConfigError: another one has it, or the folder cannot be made; names `variable`.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        file_number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"{variable}={str(directory)!r}: {error.strerror}") from None
    try:
        fcntl.flock(file_number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file_number)
        raise ConfigError(f"{variable}={str(directory)!r}: another kvstore uses it") from None
    return file_number
