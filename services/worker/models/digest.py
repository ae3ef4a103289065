"""The digest of a model's weights, made while they are loaded: it takes as long."""

from collections.abc import Iterator
from concurrent.futures import Future
from hashlib import blake2b
from pathlib import Path
from threading import Thread

import xxhash

THREADS_MAX = 4
READ_BYTES = 256 * 1024  # stays in a core's cache until it is hashed


class WeightsDigest:
    """Hashes a folder's files from now on, several at once. A hub id's may still be fetched: they
    are hashed when the result is asked for.

    Its threads do not keep a process from ending: a model that is refused does not wait for them.

    Args:
        source: folder, or hub id of a model that will be in the local cache.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        folder = Path(source)
        self._hashes = _FileHashes(folder) if folder.is_dir() else None

    def result(self) -> blake2b:
        """A hash, to be continued, over the weights and config.

        Raises:
            OSError: a file cannot be read.
        """
        hashes = self._hashes
        if hashes is None:
            from huggingface_hub import snapshot_download

            hashes = _FileHashes(Path(snapshot_download(self._source, local_files_only=True)))
        digest = blake2b(digest_size=16)
        for path, found in hashes.by_file.items():
            digest.update(f"{path.name}:{found.result()}".encode())
        digest.update((hashes.folder / "config.json").read_bytes())
        return digest


def weights_digest(source: str) -> blake2b:
    """`WeightsDigest.result`, waited for."""
    return WeightsDigest(source).result()


class _FileHashes:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
        self.by_file: dict[Path, Future[str]] = {path: Future() for path in files}
        left = iter(list(self.by_file.items()))
        for _ in range(min(len(files), THREADS_MAX)):
            Thread(target=_hash_all, args=(left,), name="weights-digest", daemon=True).start()


def _hash_all(left: Iterator[tuple[Path, "Future[str]"]]) -> None:
    """Hash what no other thread has taken."""
    for path, found in left:
        try:
            found.set_result(_file_hash(path))
        except BaseException as error:  # whose waiter is another thread
            found.set_exception(error)


def _file_hash(path: Path) -> str:
    digest = xxhash.xxh3_128()
    buffer = memoryview(bytearray(READ_BYTES))
    with path.open("rb", buffering=0) as file:
        while num_bytes := file.readinto(buffer):
            digest.update(buffer[:num_bytes])
    return digest.hexdigest()
