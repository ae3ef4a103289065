"""The file that every process locks that writes to leased pages of an arena."""

import fcntl
import os


class LeaseLock:
    """Locked until it is closed, or its process dies; made if it is not there. Locks are shared:
    the kvstore, which locks the file alone to see whether it can, takes leased pages back when no
    process has it.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        self._file_number = os.open(path, flags, 0o600)
        fcntl.flock(self._file_number, fcntl.LOCK_SH)

    def close(self) -> None:
        os.close(self._file_number)
