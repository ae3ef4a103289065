"""Reading an adapter from a folder that a user names: nothing outside of the folders that the
operator allows, whatever links there are and however they change meanwhile.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shared.adapters.config import AdapterInvalid
from shared.adapters.files import TAKEN, check_names
from shared.adapters.source import PICKLE_FILE
from shared.errors import InvalidRequest, NotFound

PART_BYTES = 1 << 20


class PathForbidden(InvalidRequest):
    """A path that no adapter may come from."""

    code = "adapter_path_forbidden"
    http_status = 403

    def __init__(self, path: str) -> None:
        super().__init__(
            f"lora_path: {path!r} is below none of the folders in SYMPHONY_ADAPTER_DIRS",
            "lora_path",
        )


class Source:
    """A folder with an adapter.

    Args:
        allowed: folders that it has to be below, once all links are followed.

    Raises:
        PathForbidden: it is not.
        NotFound: there is no such folder.
    """

    def __init__(self, allowed: Sequence[Path], path: str) -> None:
        self._allowed = [each for folder in allowed if (each := _resolved(folder)) is not None]
        self._path = Path(path)
        self._shown = path
        if not self._path.is_absolute() or "\0" in path:
            raise PathForbidden(path)
        self._below(self._path)  # before `is_dir`: a user must not learn what is outside
        if not self._path.is_dir():
            raise NotFound(f"lora_path: {path!r}: there is no such folder", "lora_path")

    def sizes(self) -> dict[str, int]:
        """Bytes of the files that are taken, by name.

        Raises:
            AdapterInvalid: one is missing, or is no file.
            PathForbidden: one is a link to somewhere else.
        """
        found = {}
        for name in TAKEN:
            if (self._path / name).exists():
                with self._opened(name) as file:
                    found[name] = os.fstat(file).st_size
        check_names(found, has_pickle=(self._path / PICKLE_FILE).exists())
        return found

    def parts(self, name: str) -> Iterator[bytes]:
        """A file's bytes.

        Raises:
            PathForbidden: it is a link to somewhere else now.
            OSError: it cannot be read.
        """
        with self._opened(name) as file:
            while part := os.read(file, PART_BYTES):
                yield part

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        """Open a file step by step, following no link: what was resolved cannot be replaced."""
        root, parts = self._below(self._path / name)
        try:
            file = _open_below(root, parts)
        except OSError as error:
            raise AdapterInvalid(name, f"it cannot be read: {error.strerror}") from None
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise AdapterInvalid(name, "it is no file")
            yield file
        finally:
            os.close(file)

    def _below(self, path: Path) -> tuple[Path, tuple[str, ...]]:
        real = _resolved(path)
        for root in self._allowed:
            if real is not None and real.is_relative_to(root):
                return root, real.relative_to(root).parts
        raise PathForbidden(self._shown)


def _open_below(root: Path, parts: Sequence[str]) -> int:
    where = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for number, part in enumerate(parts):
        kind = os.O_DIRECTORY if number < len(parts) - 1 else os.O_NONBLOCK
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind
        try:
            inner = os.open(part, flags, dir_fd=where)
        finally:
            os.close(where)
        where = inner
    return where


def _resolved(path: Path) -> Path | None:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # links in a circle
        return None
