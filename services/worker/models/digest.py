"""The digest of a model's weights, made while they are loaded: it takes as long."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from hashlib import blake2b
from pathlib import Path
from threading import Thread

import xxhash

THREADS_MAX = 4
READ_BYTES = 256 * 1024  # stays in a core's cache until it is hashed

OnBytes = Callable[[int], None]


class WeightsDigest:
    """Hashes a folder's files from now on, several at once. A hub id's may still be fetched: they
    are hashed when the result is asked for.

    Its threads do not keep a process from ending: a model that is refused does not wait for them.

    Args:
        source: folder, or hub id of a model that will be in the local cache.
        on_bytes: called with the bytes that were read since the last call, by any thread.
    """

    def __init__(self, source: str, on_bytes: OnBytes = lambda _: None) -> None:
        self._source = source
        self._on_bytes = on_bytes
        folder = Path(source)
        self._hashes = _FileHashes(folder, on_bytes) if folder.is_dir() else None

    def result(self) -> blake2b:
        """A hash, to be continued, over the weights and config.

        Raises:
            OSError: a file cannot be read.
        """
        hashes = self._hashes
        if hashes is None:
            from huggingface_hub import snapshot_download

            folder = Path(snapshot_download(self._source, local_files_only=True))
            hashes = _FileHashes(folder, self._on_bytes)
        digest = blake2b(digest_size=16)
        for path, found in hashes.by_file.items():
            digest.update(f"{path.name}:{found.result()}".encode())
        digest.update((hashes.folder / "config.json").read_bytes())
        return digest


def weights_digest(source: str, on_bytes: OnBytes = lambda _: None) -> blake2b:
    """`WeightsDigest.result`, waited for."""
    return WeightsDigest(source, on_bytes).result()


def weights_bytes(source: str) -> int:
    """Of a folder's files, how much there is to read; 0 for a hub id."""
    folder = Path(source)
    return sum(path.stat().st_size for path in _weights_of(folder)) if folder.is_dir() else 0


def _weights_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))


class _FileHashes:
    def __init__(self, folder: Path, on_bytes: OnBytes) -> None:
        self.folder = folder
        files = _weights_of(folder)
        self.by_file: dict[Path, Future[str]] = {path: Future() for path in files}
        left = iter(list(self.by_file.items()))
        for _ in range(min(len(files), THREADS_MAX)):
            arguments = (left, on_bytes)
            Thread(target=_hash_all, args=arguments, name="weights-digest", daemon=True).start()


def _hash_all(left: Iterator[tuple[Path, "Future[str]"]], on_bytes: OnBytes) -> None:
    """Hash what no other thread has taken."""
    for path, found in left:
        try:
            found.set_result(_file_hash(path, on_bytes))
        except BaseException as error:  # whose waiter is another thread
            found.set_exception(error)


def _file_hash(path: Path, on_bytes: OnBytes) -> str:
    digest = xxhash.xxh3_128()
    buffer = memoryview(bytearray(READ_BYTES))
    with path.open("rb", buffering=0) as file:
        while num_bytes := file.readinto(buffer):
            digest.update(buffer[:num_bytes])
            on_bytes(num_bytes)
    return digest.hexdigest()
