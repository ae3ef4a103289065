"""What the kvstore needs of a disk. `Disk` is the real one."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from services.kvstore.core import DiskWrite, LoadOutcome
from services.kvstore.tiers.disk.reading import StoredPage
from shared.arena import Bytes
from shared.blocks import BlockKey


class BlockReader(Protocol):
    """A snapshot of the disk."""

    def copy(
        self, key: BlockKey, layer: int, out: Bytes, *, may_wait: bool = True
    ) -> LoadOutcome | None:
        """Read a block's page of this layer into `out` (uint8 [page_bytes]) and check it. Without
        `may_wait`, None if that would take a while.
        """
        ...

    def page(self, key: BlockKey, layer: int) -> StoredPage | None:
        """A block's page of this layer, not checked; None if there is none."""
        ...


class BlockWriter(Protocol):
    """A transaction."""

    def put(self, write: DiskWrite, pages: Bytes) -> None:
        """Store a block from the arena's `pages`.

        Raises:
            CorruptPage: a page is not what its checksum says.
            DiskFailed: it cannot be stored.
        """
        ...

    def delete(self, key: BlockKey) -> None:
        """Remove a block, if it is there."""
        ...

    def touch(self, keys: Sequence[BlockKey], expiry_s: int = 0) -> None:
        """Note that these blocks were used now, and for how long they outlive that."""
        ...


class BlockStore(Protocol):
    """Blocks that survive a restart. Many threads read at a time, one writes."""

    def read(self) -> AbstractContextManager[BlockReader]:
        """A snapshot to read from.

        Raises:
            DiskFailed: at the beginning or while reading.
        """
        ...

    def write(self, now_s: int) -> AbstractContextManager[BlockWriter]:
        """A transaction, committed at the end unless the body raises.

        Args:
            now_s: wall clock, seconds.

        Raises:
            DiskFailed: nothing of the transaction is stored.
        """
        ...

    def reset(self) -> None:
        """Replace a damaged database by an empty one; by the thread that writes."""
        ...

    def sync(self) -> None:
        """Make everything written so far durable.

        Raises:
            DiskFailed: it may not be.
        """
        ...
