"""A block on disk, as the tier takes it in and reports it."""

from dataclasses import dataclass

from shared.blocks import NO_PARENT, BlockKey
from shared.eviction import UNKNOWN_KIND
from shared.owners import NO_OWNER, OwnerKey

UNKNOWN = -1  # a depth that is still to be found


@dataclass(slots=True, eq=False)
class StoredBlock:
    """A block whose every layer is on disk.

    Attributes:
        num_bytes: what it occupies there, all layers.
        noted_at_ns: last use as written down on disk, at most a while behind `used_at_ns`.
        owner: the session that made it.
        parent: key of the block before it.
        depth: blocks before it, as far as they are here; set by the tier.
        num_children: blocks here that continue it; set by the tier.
        is_saved: the object store has it, too.
        expiry_ns: how long it outlives its last use; 0: as the tier has it.
        return_kind: of the sequence that it was last used in, as `shared.eviction` has it.
        is_refused: it is in memory alone, since it was not worth a write.
    """

    key: BlockKey
    num_layers: int
    page_bytes: int
    num_bytes: int
    used_at_ns: int
    noted_at_ns: int
    owner: OwnerKey = NO_OWNER
    parent: BlockKey = NO_PARENT
    depth: int = UNKNOWN
    num_children: int = 0
    is_saved: bool = False
    expiry_ns: int = 0
    return_kind: int = UNKNOWN_KIND
    is_refused: bool = False
