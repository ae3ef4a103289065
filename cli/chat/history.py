"""The lines typed earlier, for the arrow keys."""

import os
from contextlib import suppress
from pathlib import Path

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

FILE_BYTES_MAX = 1 << 20


class KeptHistory(FileHistory):
    """A file of lines; a disk that takes none costs the line's place in it, nothing else."""

    def store_string(self, string: str) -> None:
        """Append one."""
        with suppress(OSError):
            super().store_string(string)


def open_history(path: Path, file_bytes_max: int = FILE_BYTES_MAX) -> History:
    """The history kept in `path`, readable by its owner alone; of a file grown too large the newer
    half. Where no file can be, a history of this chat alone.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
            os.fchmod(file.fileno(), 0o600)
            if os.fstat(file.fileno()).st_size > file_bytes_max:
                file.seek(-(file_bytes_max // 2), os.SEEK_END)
                _, _, kept = file.read().partition(b"\n\n")  # from an entry's beginning
                file.seek(0)
                file.write(b"\n" + kept)
                file.truncate()
    except OSError:
        return InMemoryHistory()
    return KeptHistory(str(path))
