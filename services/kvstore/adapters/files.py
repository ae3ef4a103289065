"""An adapter's files on this host's disk, in a folder of this shape::

    HASH/...              files of an adapter, as they came
    names/DIGEST.json     what stands under one tenant's name
    .new-...              what is being copied

They are the truth about which adapters there are. A folder gets its name when all in it is on the
disk, and a record when its folder has its own, so whenever the process or the machine stops, an
adapter is there whole or not at all.
"""

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from tempfile import mkdtemp

from shared.adapters.files import NEEDED
from shared.adapters.record import decode_adapter, encode_adapter
from shared.errors import MalformedMessage
from shared.ids import TenantId
from shared.wire.messages import AdapterRecord
from shared.wire.messages.adapters import HASH_CHARS

log = logging.getLogger(__name__)

NEW = ".new-"
NAMES = "names"
RECORD_BYTES_MAX = 1 << 20
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Found:
    """What is on the disk.

    Attributes:
        files: bytes, by hash.
    """

    records: list[AdapterRecord]
    files: dict[str, int]


class AdapterFiles:
    """Blocking: for threads. Changes of one name must not overlap.

    Args:
        root: a folder of this user alone.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._names = root / NAMES

    def scan(self) -> Found:
        """Make the folder unless it is there, remove what was left half done, and read the rest.

        Raises:
            OSError: it cannot be read or written.
        """
        self._names.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = {}
        for entry in list(os.scandir(self._root)):
            if entry.name.startswith(NEW):
                self.discard(Path(entry.path))
            elif is_hash(entry.name) and entry.is_dir(follow_symlinks=False):
                files[entry.name] = _bytes_in(Path(entry.path))
        records = []
        for path in sorted(self._names.iterdir()):
            if path.name.startswith(NEW):
                path.unlink()
            elif path.is_file() and (record := _read(path)) is not None:
                records.append(record)
        return Found(records, files)

    def new_folder(self) -> Path:
        """An empty folder to copy into; `install` or `discard` it.

        Raises:
            OSError: there is no room.
        """
        return Path(mkdtemp(prefix=NEW, dir=self._root))

    def install(self, folder: Path, adapter_hash: str, is_whole: Callable[[Path], bool]) -> None:
        """Give a folder that is complete its name. One that has it already stays, if it is whole.

        Raises:
            OSError: the disk does not take it.
        """
        assert is_hash(adapter_hash)
        for entry in list(os.scandir(folder)):
            _sync(Path(entry.path))
        _sync(folder)
        place = self._root / adapter_hash
        if place.is_dir():
            if is_whole(place):
                self.discard(folder)
                return
            self.delete_folder(adapter_hash)
        folder.rename(place)
        _sync(self._root)

    def folder_of(self, adapter_hash: str) -> Path:
        """Where an adapter's files are, if they are here."""
        return self._root / adapter_hash

    def sizes(self, adapter_hash: str) -> dict[str, int]:
        """Bytes of the files that an image is built from, by name.

        Raises:
            OSError: they are not here.
        """
        folder = self.folder_of(adapter_hash)
        return {name: (folder / name).stat().st_size for name in NEEDED}

    def read(self, adapter_hash: str, name: str, offset: int, num_bytes: int) -> bytes:
        """A part of a file; shorter only at its end.

        Raises:
            OSError: it is not here.
        """
        with (self.folder_of(adapter_hash) / name).open("rb") as file:
            file.seek(offset)
            return file.read(num_bytes)

    def write_record(self, record: AdapterRecord) -> None:
        """Let a name stand for its adapter, whose folder is there.

        Raises:
            OSError: the disk does not take it; the name stands for what it did.
        """
        path = self._path_of(record.tenant, record.name)
        new = path.with_name(NEW + path.name)
        try:
            new.write_bytes(encode_adapter(record))
            _sync(new)
            new.replace(path)
        except OSError:
            with _ignoring_errors():
                new.unlink(missing_ok=True)
            raise
        _sync(self._names)

    def delete_record(self, tenant: TenantId, name: str) -> None:
        """Let a name stand for nothing.

        Raises:
            OSError: the disk does not take it.
        """
        self._path_of(tenant, name).unlink(missing_ok=True)
        _sync(self._names)

    def delete_folder(self, adapter_hash: str) -> None:
        """Remove an adapter's files: first their name, so that a part of them is none."""
        assert is_hash(adapter_hash)
        gone = self._root / (NEW + adapter_hash)
        with _ignoring_errors():
            (self._root / adapter_hash).rename(gone)
        self.discard(gone)

    def discard(self, folder: Path) -> None:
        """Remove what is in a folder, and it."""
        assert folder.name.startswith(NEW)
        if folder.is_symlink() or folder.is_file():
            folder.unlink()
        else:
            shutil.rmtree(folder, ignore_errors=True)

    def _path_of(self, tenant: TenantId, name: str) -> Path:
        text = f"{len(tenant)}:{tenant}{name}".encode(errors="surrogatepass")
        return self._names / f"{blake2b(text, digest_size=16).hexdigest()}.json"


def is_hash(text: str) -> bool:
    """Whether a text is an adapter's hash.

    >>> is_hash("0" * 32), is_hash("..")
    (True, False)
    """
    return len(text) == HASH_CHARS and set(text) <= _HEX


def _read(path: Path) -> AdapterRecord | None:
    """A record, or None: of another release, or nothing of ours."""
    try:
        with path.open("rb") as file:
            return decode_adapter(file.read(RECORD_BYTES_MAX))
    except (OSError, MalformedMessage) as error:
        log.error("an adapter's record cannot be read", extra={"path": path, "error": str(error)})
        return None


def _bytes_in(folder: Path) -> int:
    return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(folder))


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextmanager
def _ignoring_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.warning("adapter files", extra={"error": str(error)})
