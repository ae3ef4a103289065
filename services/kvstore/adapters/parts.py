"""An adapter's files as other hosts fetch them: one after the other, cut into parts.

Each part is sent as if it were a page of KV, of a size that no model has: what stands for a
block's key is the adapter's hash; what stands for a layer, the part's number.
"""

from collections.abc import Mapping

from services.kvstore.adapters.files import AdapterFiles
from services.kvstore.peers.sources import SourcePage
from services.kvstore.tiers.values import HEADER_BYTES, LAYERS_MAX, ValueHeader, pack_header
from shared.adapters.files import NEEDED
from shared.arena import checksum
from shared.blocks import NO_PARENT, BlockKey

PART_BYTES = 1024 * 1024 - HEADER_BYTES  # of the last one, what the files lack is zeros
FILES_BYTES_MAX = LAYERS_MAX * PART_BYTES


def key_of(adapter_hash: str) -> BlockKey:
    """What stands for a block's key."""
    return BlockKey(bytes.fromhex(adapter_hash))


def num_parts(sizes: Mapping[str, int]) -> int:
    """Of files of these sizes.

    >>> num_parts({"a": 1, "b": PART_BYTES}), num_parts({"a": PART_BYTES})
    (2, 1)
    """
    return -(-sum(sizes.values()) // PART_BYTES)


def places(sizes: Mapping[str, int], start: int, num_bytes: int) -> list[tuple[str, int, int]]:
    """Where `num_bytes` of all files from `start` on are: file, offset and length.

    >>> places({"a": 3, "b": 5}, 2, 4)
    [('a', 2, 1), ('b', 0, 3)]
    """
    found, end = [], start + num_bytes
    for name, size in sizes.items():
        if start < size and end > 0:
            begin = max(start, 0)
            found.append((name, begin, min(end, size) - begin))
        start, end = start - size, end - size
    return found


class FileParts:
    """What a host serves of its adapters' files."""

    def __init__(self, files: AdapterFiles) -> None:
        self._files = files

    def find(self, key: BlockKey, number: int, num_bytes: int) -> SourcePage | None:
        """A part; None if it is not here. In any thread."""
        if num_bytes != PART_BYTES:
            return None
        adapter_hash = key.hex()
        try:
            sizes = self._files.sizes(adapter_hash)
            here = places(sizes, number * PART_BYTES, PART_BYTES)
            data = b"".join(self._files.read(adapter_hash, *place) for place in here)
        except OSError:
            return None  # it was removed
        if not data or len(data) != sum(length for _, _, length in here):
            return None
        data = data.ljust(PART_BYTES, b"\0")
        header = ValueHeader(
            key, NO_PARENT, bytes(16), number, num_parts(sizes), PART_BYTES, 0, (), checksum(data)
        )
        return SourcePage([pack_header(header), data])


def are_sizes(sizes: Mapping[str, int], num_bytes_max: int) -> bool:
    """Whether a host may have said this of an adapter's files."""
    is_whole = tuple(sizes) == NEEDED and min(sizes.values()) > 0
    return is_whole and sum(sizes.values()) <= min(num_bytes_max, FILES_BYTES_MAX)
