"""How large the tiers of a host are where no setting says it: shares of what its machine has.

Source of the shares, for software that shares a machine as this does: Ray's object store takes 30%
of the memory, PostgreSQL's manual advises 25% for shared buffers, and Elasticsearch leaves 15% of
a disk free.
"""

from dataclasses import dataclass

from shared.errors import NoCapacity
from shared.runtime.memory import Memory

MIB = 1024**2
MEMORY_SHARE = 4  # one part of so many: weights, and pools of workers on a CPU, have the rest
AVAILABLE_SHARE = 2  # of what can be had when the host starts
SHARED_SHARE = 0.9  # of the file system of the arenas
DISK_SHARE = 2  # of free disk; files may exceed it by a quarter, so 3/8 at least stay free
DISK_BYTES_MAX = 1024**4  # by default: what indexes more takes memory, some 275 bytes a block
ARENA_BYTES_MIN = 16 * MIB
SPARE_SHARE = 16  # of all memory: what arenas that grow leave available
SPARE_BYTES_MAX = 4 * 1024 * MIB
AHEAD_BYTES_MIN = 512 * MIB  # that an arena has populated before it is asked for
AHEAD_BYTES_MAX = 4 * 1024 * MIB  # seconds of what a GPU computes


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the tiers of one machine have, as measured.

    Attributes:
        memory: of the machine, or of the container.
        shared_bytes, shared_free_bytes: of the file system of the arenas, without arenas of ours.
        disk_free_bytes: of the file system of the data folder.
        disk_kv_bytes: what KV of this host occupies there already.
        num_hosts: of one deployment on this machine, which share it.
    """

    memory: Memory
    shared_bytes: int
    shared_free_bytes: int
    disk_free_bytes: int
    disk_kv_bytes: int = 0
    num_hosts: int = 1


@dataclass(frozen=True, slots=True)
class TierSizes:
    """Of one host.

    Attributes:
        arena_bytes: of each arena if `is_arena_set`, else of all arenas together.
        disk_bytes: what blocks on disk occupy at most.
        is_arena_set: a setting gives the size: its memory is taken at once, not as it is used.
    """

    arena_bytes: int
    disk_bytes: int
    is_arena_set: bool


def tier_sizes(room: Room, arena_bytes: int = 0, disk_bytes: int = 0) -> TierSizes:
    """The sizes for one of the machine's hosts.

    Args:
        arena_bytes, disk_bytes: as set; 0: not.

    Raises:
        NoCapacity: there is no room for an arena.

    >>> room = Room(memory=Memory(64 << 30, 60 << 30), shared_bytes=32 << 30,
    ...             shared_free_bytes=32 << 30, disk_free_bytes=500 << 30)
    >>> sizes = tier_sizes(room)
    >>> sizes.arena_bytes >> 30, sizes.disk_bytes >> 30
    (16, 250)
    """
    num_hosts = room.num_hosts
    # Of what is free only this host's part, unless the others have taken theirs already.
    shared_bytes = int(SHARED_SHARE * min(room.shared_bytes // num_hosts, room.shared_free_bytes))
    if shared_bytes < ARENA_BYTES_MIN:
        others = f" for {num_hosts} hosts" if num_hosts > 1 else ""
        raise NoCapacity(
            f"{room.shared_free_bytes:,} of {room.shared_bytes:,} bytes are free there{others},"
            f" and a host needs at least {ARENA_BYTES_MIN:,}"
        )
    memory = room.memory
    share = min(memory.total_bytes // MEMORY_SHARE, memory.available_bytes // AVAILABLE_SHARE)
    disk_share = (room.disk_free_bytes + room.disk_kv_bytes) // DISK_SHARE // num_hosts
    return TierSizes(
        min(arena_bytes or max(share // num_hosts, ARENA_BYTES_MIN), shared_bytes),
        disk_bytes or max(min(disk_share, DISK_BYTES_MAX), MIB),
        is_arena_set=arena_bytes > 0,
    )


def may_grow(memory: Memory, num_bytes: int) -> bool:
    """Whether an arena may take so much more, and others find memory all the same.

    >>> may_grow(Memory(64 << 30, 5 << 30), 1 << 30), may_grow(Memory(64 << 30, 4 << 30), 1 << 30)
    (True, False)
    """
    spare_bytes = min(memory.total_bytes // SPARE_SHARE, SPARE_BYTES_MAX)
    return memory.available_bytes - num_bytes >= spare_bytes


def num_pages_ahead(num_used: int, page_bytes: int) -> int:
    """How many free pages an arena of which so many are used is to have: as many as are used.

    >>> num_pages_ahead(0, 1 << 20), num_pages_ahead(1000, 1 << 20), num_pages_ahead(9000, 1 << 20)
    (512, 1000, 4096)
    """
    num_bytes = min(max(num_used * page_bytes, AHEAD_BYTES_MIN), AHEAD_BYTES_MAX)
    return max(num_bytes // page_bytes, 1)
