"""Adapters' files in the object store: each host writes those of its own names, any host reads.

They are called ``adapters/HASH/HOST/FILE``, so that a host that removes an adapter does not take
another's files. Everything here blocks: for threads.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

from services.kvstore.adapters.store import IncomingAdapter
from services.kvstore.tiers.objects.store import NoObject, ObjectStore, StoreFailed
from shared.adapters.files import NEEDED
from shared.errors import PeerUnavailable
from shared.ids import HostId

FOLDER = "adapters"
PIECE_BYTES = 8 * 1024 * 1024


class AdapterObjects:
    """Args:
    host_id: our own.
    """

    def __init__(self, bucket: ObjectStore, host_id: HostId) -> None:
        self._bucket = bucket
        self._host_id = host_id

    def own(self) -> set[str]:
        """Hashes of the adapters that this host has written as a whole.

        Raises:
            StoreFailed: it is not known.
        """
        files: dict[str, set[str]] = {}
        for adapter_hash, host_id, name, _ in self._walk(FOLDER):
            if host_id == self._host_id:
                files.setdefault(adapter_hash, set()).add(name)
        return {adapter_hash for adapter_hash, names in files.items() if names >= set(NEEDED)}

    def save(self, adapter_hash: str, folder: Path) -> None:
        """Raises:
        StoreFailed: some of it may be there all the same.
        OSError: the files are not here.
        """
        for name in NEEDED:
            with (
                (folder / name).open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                self._bucket.put(self._name(adapter_hash, name), data)

    def delete(self, adapter_hash: str) -> None:
        """Raises:
        StoreFailed: some of it may be there yet.
        """
        self._bucket.delete([self._name(adapter_hash, name) for name in NEEDED])

    def found(self, adapter_hash: str) -> list[tuple[HostId, dict[str, int]]]:
        """Hosts that have written this adapter, and their files' bytes, by name.

        Raises:
            StoreFailed: it is not known.
        """
        sizes: dict[HostId, dict[str, int]] = {}
        for _, host_id, name, num_bytes in self._walk(f"{FOLDER}/{adapter_hash}"):
            sizes.setdefault(host_id, {})[name] = num_bytes
        return [
            (host_id, {name: files[name] for name in NEEDED})
            for host_id, files in sizes.items()
            if files.keys() >= set(NEEDED)
        ]

    def pull(
        self, adapter_hash: str, host_id: HostId, sizes: dict[str, int], incoming: IncomingAdapter
    ) -> None:
        """Read what a host has written.

        Raises:
            PeerUnavailable: not all of it is there.
            OSError: there is no room on the disk.
        """
        for name, size in sizes.items():
            for offset in range(0, size, PIECE_BYTES):
                num_bytes = min(PIECE_BYTES, size - offset)
                try:
                    path = f"{FOLDER}/{adapter_hash}/{host_id}/{name}"
                    data = self._bucket.get(path, offset, num_bytes)
                except (StoreFailed, NoObject) as error:
                    raise PeerUnavailable(f"the object store: {error}") from None
                if len(data) != num_bytes:
                    raise PeerUnavailable(f"the object store: {name} has become shorter")
                incoming.append(name, data)

    def _name(self, adapter_hash: str, name: str) -> str:
        return f"{FOLDER}/{adapter_hash}/{self._host_id}/{name}"

    def _walk(self, folder: str) -> Iterator[tuple[str, HostId, str, int]]:
        for page in self._bucket.walk(folder):
            for each in page:
                parts = each.name.split("/")
                if len(parts) == 4:
                    yield parts[1], HostId(parts[2]), parts[3], each.num_bytes
