"""The parts of one host's core, and how they are put together."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from services.kvstore.core.base.steps import Steps
from services.kvstore.core.base.store_limits import Counts, Limits
from services.kvstore.core.disk.disk_tier import DiskTier
from services.kvstore.core.loading.finding import Finding
from services.kvstore.core.loading.loads import Loads
from services.kvstore.core.loading.peers import Deleted, Peers
from services.kvstore.core.tiers.arena_only_blocks import ArenaOnlyBlocks
from services.kvstore.core.tiers.arena_tier import ArenaTier
from services.kvstore.core.tiers.host_blocks import HostBlocks
from services.kvstore.core.tiers.shrinking import Shrinking
from services.kvstore.core.tiers.tiers import Tiers
from services.kvstore.core.tiers.workers import Workers
from services.kvstore.core.writing.arrivals import Arrivals
from services.kvstore.core.writing.objects import Objects
from services.kvstore.core.writing.storing import Storing
from services.kvstore.core.writing.write_queue import WriteQueue
from shared.eviction import ReturnModel
from shared.ids import HostId


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What `KvCore` and its event handlers share.

    Attributes:
        arenas: by page size in bytes.
        blocks: blocks on disk, and those that only an arena has: no block is in both.
        deleted: sessions that were deleted lately.
        returns: learns what returns when.
        block_ids: numbers for new arena blocks.
    """

    limits: Limits
    counts: Counts
    arenas: dict[int, ArenaTier]
    blocks: HostBlocks
    tiers: Tiers
    workers: Workers
    loads: Loads
    steps: Steps
    shrinking: Shrinking
    objects: Objects
    storing: Storing
    arrivals: Arrivals
    peers: Peers
    finding: Finding
    deleted: Deleted
    returns: ReturnModel
    block_ids: Iterator[int]


def make_parts(limits: Limits, first_ticket: int, host_id: HostId) -> Parts:
    """New parts, which know of no block."""
    counts = Counts()
    arenas: dict[int, ArenaTier] = {}
    returns = ReturnModel()
    is_predicted = limits.eviction == "predicted"
    disk = DiskTier(limits.disk_bytes_max, limits.expiry_ns, returns if is_predicted else None)
    blocks = HostBlocks(disk, ArenaOnlyBlocks(limits.expiry_ns))
    tiers = Tiers(arenas, blocks)
    objects = Objects(limits, disk, host_id, counts)
    loads = Loads(limits, tiers, arenas, counts)
    steps = Steps()
    shrinking = Shrinking(limits, tiers, steps, counts)
    deleted = Deleted()
    workers = Workers(first_ticket)
    blocks.on_gone = workers.on_gone
    queue = WriteQueue(limits.disk_bytes_per_s, limits.write_wait_ns, limits.copy_rest_ns)
    storing = Storing(
        tiers, loads, objects, shrinking, queue, counts, has_objects=limits.has_objects
    )
    return Parts(
        limits=limits,
        counts=counts,
        arenas=arenas,
        blocks=blocks,
        tiers=tiers,
        workers=workers,
        loads=loads,
        steps=steps,
        shrinking=shrinking,
        objects=objects,
        storing=storing,
        arrivals=Arrivals(blocks, loads.disk, storing.writes, queue, deleted),
        peers=Peers(host_id),
        finding=Finding(host_id),
        deleted=deleted,
        returns=returns,
        block_ids=count(1),
    )
