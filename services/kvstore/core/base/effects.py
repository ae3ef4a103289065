"""What the kvstore's core asks its shell to do, to be performed in the order given."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from services.kvstore.core.base.runs import Run
from shared.arena import PageState
from shared.blocks import BlockKey
from shared.ids import HostId
from shared.owners import NO_OWNER, OwnerKey


class LoadOutcome(Enum):
    """How the copy of one page from disk to the arena ended."""

    READY = "ready"
    MISSING = "missing"  # the disk no longer has it
    CORRUPT = "corrupt"  # its bytes are not those that were stored
    FAILED = "failed"  # not read, which says nothing of what is stored


class WriteOutcome(Enum):
    """How the write of one block ended."""

    STORED = "stored"
    FULL = "full"  # the disk has no room
    FAILED = "failed"  # the disk did not take it for another reason
    CORRUPT = "corrupt"  # the arena's bytes are not those the worker announced


class SaveOutcome(Enum):
    """How the write of one run to the object store ended."""

    SAVED = "saved"
    MISSING = "missing"  # the disk no longer has all of it: the core gets a missing key
    UNREAD = "unread"  # the disk could not be read
    FAILED = "failed"  # the object store did not take it


@dataclass(frozen=True, slots=True)
class SetWords:
    """Publish the state of these pages. The loader publishes READY and BAD of its pages itself."""

    page_bytes: int
    pages: list[int]
    generations: list[int]
    state: PageState


@dataclass(frozen=True, slots=True)
class PageReads:
    """Pages of one layer to bring into the arena. The lists hold one entry a page: its block, where
    in the arena it goes, and under which generation it was promised. `kind` is how urgent they are
    (`shared.wire.urgency`).
    """

    layer: int
    page_bytes: int
    block_ids: list[int]
    keys: list[BlockKey]
    pages: list[int]
    generations: list[int]
    kind: int = 0


@dataclass(frozen=True, slots=True)
class ReadPages:
    """A batch for the loader, in this order; answer with `on_loaded`. Or for another host's
    kvstore; answer with `on_fetched`.
    """

    reads: list[PageReads]
    host_id: HostId | None = None


@dataclass(frozen=True, slots=True)
class DiskWrite:
    """One block to store. `pages` and `checksums` (xxh3-64) hold one entry a layer.

    Attributes:
        expiry_s: how long it outlives its last use; 0: as every tier has it; None: it came from
            elsewhere, and has what its session has here.
    """

    block_id: int
    key: BlockKey
    parent: BlockKey
    tokens: Sequence[int]
    fingerprint: str
    page_bytes: int
    pages: list[int]
    checksums: Sequence[int]
    owner: OwnerKey = NO_OWNER
    expiry_s: int | None = 0


@dataclass(frozen=True, slots=True)
class WriteBlocks:
    """Store these blocks, after everything asked of the disk before; answer with `on_written`."""

    writes: list[DiskWrite]


@dataclass(frozen=True, slots=True)
class DeleteBlocks:
    """Remove these blocks (key, number of layers) from the disk, after everything asked before."""

    blocks: list[tuple[BlockKey, int]]


@dataclass(frozen=True, slots=True)
class ResetDisk:
    """Throw everything on disk away, after everything asked of it before."""


@dataclass(frozen=True, slots=True)
class TouchBlocks:
    """Remember on disk that these blocks were used now, and that they outlive that for so long; 0:
    as the disk has it.
    """

    keys: list[BlockKey]
    expiry_s: int = 0


@dataclass(frozen=True, slots=True)
class DoMore:
    """A step left something to do: call `on_do_more` when events that wait now were handled."""


@dataclass(frozen=True, slots=True)
class GrowArena:
    """Have memory behind so many pages of an arena, from the first on, as far as there is some for
    it; answer with `on_arena_grown`.
    """

    page_bytes: int
    num_pages: int


@dataclass(frozen=True, slots=True)
class SaveRun:
    """Write these blocks from the disk to the object store; answer with `on_saved`."""

    run: Run
    keys: list[BlockKey]


@dataclass(frozen=True, slots=True)
class DropRuns:
    """Remove these from the object store, after everything asked of it before."""

    runs: list[Run]


@dataclass(frozen=True, slots=True)
class DropSession:
    """Remove all that this session has in the object store, from any host, after everything
    asked of it before.
    """

    owner: OwnerKey


DiskEffect: TypeAlias = WriteBlocks | DeleteBlocks | ResetDisk | TouchBlocks
ObjectEffect: TypeAlias = SaveRun | DropRuns | DropSession
Effect: TypeAlias = SetWords | ReadPages | DoMore | GrowArena | DiskEffect | ObjectEffect
