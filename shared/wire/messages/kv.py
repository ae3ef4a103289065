"""Worker and kvstore of one host: leases of arena pages, staging, commits.

Bulk bytes never travel here: both sides map the arena (`shared.arena`). A worker writes new KV into
pages it leased and commits them; it reads history from pages that a stage pinned for it, each
usable once its word in the arena says ready. Page lists are packed int32; for several layers they
are laid out ``[layer][block]``.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from shared.ids import DEFAULT_TENANT, HostId, SessionId, TenantId, WorkerId
from shared.owners import NO_OWNER


@dataclass(frozen=True, slots=True, kw_only=True)
class KvOpen:
    """Worker introduces itself, before any other call and again whenever the kvstore says
    `unknown_worker` or does not answer in time.

    Each time as a new incarnation, which gives back everything the old one held, and voids calls of
    the old one that are still in flight.
    """

    worker_id: WorkerId
    incarnation: str
    fingerprint: str
    num_layers: int
    page_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KvOpened:
    """Where the arena for this page size is. The worker holds `lease_path` locked (flock) for as
    long as it lives.
    """

    arena_path: str  # file of the arena, to map
    lease_path: str  # file to hold locked
    adapters_path: str = ""  # folder with the files of each adapter, under its hash


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLease:
    """Ask for up to `num_pages` arena pages to write new KV into.

    `number` counts an incarnation's requests, so that `KvRenew` can say which answers it has.
    """

    worker_id: WorkerId
    incarnation: str
    page_bytes: int
    num_pages: int  # at most so many
    number: int = 0  # counts an incarnation's requests


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLeased:
    """Leased pages, possibly fewer than asked for (none: the arena is full of pages in use)."""

    pages: str = ""  # packed int32


# Where KV is, seen from a worker: in its pool, in its host's memory, on its host's disk, on another
# host, in the object store.
KvPlace = Literal["pool", "host", "disk", "peer", "objects"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvStage:
    """Bring the longest stored prefix of `keys` into the arena, layer 0 first, and pin it for this
    worker: from disk, or from one of the hosts that are said to have more of it.

    Name blocks by `keys`, or leave those empty and name a session whose record (Redis) holds them.
    """

    worker_id: WorkerId
    incarnation: str
    fingerprint: str
    num_layers: int
    page_bytes: int
    keys: str = ""
    session_id: SessionId | None = None
    tenant: TenantId = DEFAULT_TENANT
    priority: int = 0  # a waiting turn outranks advisories
    is_hint: bool = False  # no turn waits for them yet: only so much is pinned
    request_id: str = ""  # of the waiting turn
    kv_at: dict[HostId, int] = field(default_factory=dict)  # leading blocks of it by host
    num_before: int = 0  # blocks of the sequence that precede the first of `keys`
    patience_ms: int = 0  # an answer is of use for so long; 0: for long
    trace: str = ""  # as in `TurnSubmit`


@dataclass(frozen=True, slots=True, kw_only=True)
class KvStaged:
    """The first `num_blocks` of the keys are there or loading. Release the ticket when done
    reading, and renew it until then.
    """

    ticket: int = 0
    num_blocks: int = 0
    keys: str = ""  # the staged blocks' keys when a session was named
    pages: str = ""  # packed int32 [layer][block]
    generations: str = (
        ""  # packed int32 [layer][block]: what the page's word must still hold after reading
    )
    # Pages that are not in the arena yet: they come from disk, another host or the object store.
    num_pages_loading: Annotated[int, Field(alias="num_from_disk")] = 0
    # Packed int64, for each layer: when the last of its pages will probably be there, ns from the
    # answer on, by what waits before them and how fast their source was lately; empty: all are.
    ready_in_ns: str = ""
    source_bytes_per_s: float = 0.0  # how fast pages come from there lately; 0: not known
    num_here: int = 0  # the first blocks whose every layer is in the arena already
    coming_from: KvPlace | None = None  # where the first of the others is; None: nothing is to come


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLocate:
    """One host's kvstore to another's: how much of this sequence can be fetched from you?"""

    keys: str  # packed, one block after the other
    num_layers: int
    page_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLocated:
    """The first `num_blocks` of the keys, and where to fetch them: `host:port`, over TCP, by the
    protocol of `services.kvstore.peers`. No address: this host serves no others.
    """

    host_id: HostId
    num_blocks: int = 0
    address: str = ""  # where to fetch it: `host:port` of the kvstore


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRenew:
    """Worker is alive and holds these tickets (packed uint64) and leased pages. Any that it does
    not name for some time, which it lost track of, are unpinned and taken back; pages only of
    leases up to number `heard`: the answers after it may still be in flight.

    `used` names the last block of each sequence that turns ran on in the worker's pool since it
    renewed last: those blocks and all before them count as used just now.
    """

    worker_id: WorkerId
    incarnation: str
    tickets: str = ""  # tickets that it still holds
    page_bytes: int = 0
    leased: str = ""  # packed int32
    heard: int = 0  # number of the last lease whose answer has come
    used: str = ""  # packed keys


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRenewed:
    """How fast pages load lately from where they are when they are not in the arena: on disk, or
    on another host.

    `gone` names blocks that left the arena and the disk since the renewal before, the latest of
    them: parts of them in the worker's pool are of no use.
    """

    source_bytes_per_s: float = 0.0  # 0: not known
    peer_bytes_per_s: dict[HostId, float] = field(default_factory=dict)  # as far as measured
    gone: str = ""  # packed keys


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRelease:
    """Unpin a stage's pages, or all behind those of its first `num_kept` blocks, and give leased
    pages back unused.

    `seq` numbers what an incarnation gives away, here and in `KvCommit`: a repeated message means
    nothing, for by then the worker may have been leased the same pages again. Nor does it mean a
    page of a lease after number `heard`.
    """

    worker_id: WorkerId
    incarnation: str
    ticket: int = 0
    num_kept: int = 0  # leading blocks that stay pinned
    page_bytes: int = 0
    pages: str = ""  # leased and not used, packed int32
    seq: int = 0  # 0: not numbered
    heard: int = 0  # number of the last lease whose answer has come


@dataclass(frozen=True, slots=True, kw_only=True)
class KvBlock:
    """One new block, every layer written to its leased arena page. The last block of a session may
    have fewer tokens than others, and is replaced when it grows.
    """

    key: str  # hash of the block's tokens and of all before it
    parent: str  # key of the block before it
    tokens: str  # packed int32, at most one block of them
    pages: str  # packed int32 [layer]
    checksums: str  # packed uint64 [layer]: xxh3-64 of each page
    owner: str = NO_OWNER.hex()  # hex of `shared.owners.owner_key`: the session that made it
    replaces: str = ""  # key of a block that begins as this one: it may go; empty: of none
    expiry_s: int = 0  # how long it outlives its last use; 0: as every tier has it


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCommit:
    """New blocks are complete in the arena: take them over, make them durable, update Redis."""

    worker_id: WorkerId
    incarnation: str
    fingerprint: str
    page_bytes: int
    blocks: list[KvBlock] = field(default_factory=list)  # the new blocks
    seq: int = 0  # as in `KvRelease`
    heard: int = 0  # number of the last lease whose answer has come


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCommitted:
    """How many blocks were taken over (a key that was already stored counts; its pages went back to
    the arena).
    """

    num_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KvDelete:
    """Forget the blocks that a session made, and those of `keys` (packed hex), in every tier."""

    session_id: SessionId
    tenant: TenantId = DEFAULT_TENANT
    keys: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvDeleted:
    """How many blocks this host had, which are gone now, from its disk too."""

    host_id: HostId
    num_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KvStats:
    """One host's tiers, for `symphony status` and dashboards."""

    host_id: str = ""
    num_sessions: int = 0  # sessions with KV on this host
    arena_pages: int = 0  # pages that the host memory tier is divided into now
    arena_pages_used: int = 0  # of these, pages that hold KV
    arena_bytes: int = 0  # host memory taken now
    arena_bytes_used: int = 0  # of it, what holds KV
    arena_bytes_max: dict[str, int] = field(default_factory=dict)  # they grow to, by page size
    arena_blocks_pinned: int = 0  # that tickets of workers hold
    disk_blocks: int = 0  # blocks on disk
    disk_bytes: int = 0  # what they take there
    disk_bytes_max: int = 0  # that there is room for
    objects_bytes: int = 0  # that this host wrote to the object store
    sessions_unsaved: int = 0  # that wait to be written there
    staged_pages: dict[str, int] = field(default_factory=dict)  # asked for, by where they were
    num_corrupt: int = 0  # pages read with a wrong checksum, and dropped
