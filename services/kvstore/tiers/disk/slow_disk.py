"""A disk as slow as one likes, as `SlowLink` is a link: where pages are smaller than a model's, so
that many fit a small machine, reads from it take what the model's would take from its disk.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from services.kvstore.core import LoadOutcome
from services.kvstore.tiers.disk.ports import BlockReader, BlockStore, BlockWriter
from services.kvstore.tiers.disk.reading import StoredPage
from shared.arena import Bytes
from shared.blocks import BlockKey
from shared.line import Line

OVERSLEPT_NS = 5_000_000  # a thread that wakes late finds what the disk has read meanwhile


class SlowDisk:
    """A disk from which so much is read and no more; writes are as fast as ever.

    Args:
        bytes_per_s: above 0.
    """

    def __init__(self, disk: BlockStore, bytes_per_s: float) -> None:
        self._disk = disk
        self._line = Line(bytes_per_s, OVERSLEPT_NS)

    @contextmanager
    def read(self) -> Iterator[BlockReader]:
        with self._disk.read() as reader:
            yield _SlowReader(reader, self)

    def write(self, now_s: int) -> AbstractContextManager[BlockWriter]:
        return self._disk.write(now_s)

    def reset(self) -> None:
        self._disk.reset()

    def sync(self) -> None:
        self._disk.sync()

    def wait(self, num_bytes: int) -> None:
        """Until so much is read, behind what was begun before."""
        over_at_ns = self._line.send(num_bytes, time.monotonic_ns())
        if (left_ns := over_at_ns - time.monotonic_ns()) > 0:
            time.sleep(left_ns / 1e9)


class _SlowReader:
    def __init__(self, reader: BlockReader, disk: SlowDisk) -> None:
        self._reader = reader
        self._disk = disk

    def copy(
        self, key: BlockKey, layer: int, out: Bytes, *, may_wait: bool = True
    ) -> LoadOutcome | None:
        if not may_wait:
            return None  # the system has no page in memory
        outcome = self._reader.copy(key, layer, out)
        if outcome is LoadOutcome.READY:
            self._disk.wait(out.nbytes)
        return outcome

    def page(self, key: BlockKey, layer: int) -> StoredPage | None:
        stored = self._reader.page(key, layer)
        if stored is not None:
            self._disk.wait(stored.page.nbytes)
        return stored
