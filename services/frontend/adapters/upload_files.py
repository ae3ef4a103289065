"""Files for what clients upload. They have no name, so nothing is left of them when this process
ends, however it ends.
"""

import os
from pathlib import Path
from tempfile import TemporaryFile
from typing import Protocol

from shared.private import make_private


class UploadFile(Protocol):
    """An open file. Reading and writing block."""

    def append(self, data: bytes) -> None:
        """Write `data` at the end.

        Raises:
            OSError: it cannot be written.
        """
        ...

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Up to `num_bytes` from `offset` on."""
        ...

    def duplicate(self) -> "UploadFile":
        """The same file, open until this one is closed too."""
        ...

    def close(self) -> None:
        """Close it. The file is gone once all its duplicates are closed."""
        ...


class UploadFiles(Protocol):
    """Makes files. Blocks."""

    def create(self) -> UploadFile:
        """A new, empty file.

        Raises:
            OSError: there is no room for it.
        """
        ...


class UnnamedFiles:
    """Files of the operating system.

    Args:
        folder: on the disk that has room for them; made when it is first needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create(self) -> "UnnamedFile":
        make_private(self._folder, "SYMPHONY_DATA_DIR")
        with TemporaryFile(dir=self._folder) as made:
            return UnnamedFile(os.dup(made.fileno()))


class UnnamedFile:
    """One of `UnnamedFiles`."""

    def __init__(self, number: int) -> None:
        self._number = number

    def append(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._number, left) :]

    def read(self, offset: int, num_bytes: int) -> bytes:
        return os.pread(self._number, num_bytes, offset)

    def duplicate(self) -> "UnnamedFile":
        return UnnamedFile(os.dup(self._number))

    def close(self) -> None:
        os.close(self._number)
