"""Between a worker and the KV connectors in its vLLM's processes, over a Unix socket.

The worker owns the connection to the kvstore: leases, tickets, commits. A connector in vLLM's
scheduler (one) decides which blocks are loaded and stored; a connector in each rank copies pages
between the rank's KV cache and the host's arena. Bulk bytes never travel here.

A block of ``num_layers`` layers over ``num_ranks`` tensor-parallel ranks is, to the kvstore, a
block of ``num_layers * num_ranks`` layers: page ``layer * num_ranks + rank`` is the part of `rank`.
Every message but `Hello`, `Registered` and `Closed` belongs to the epoch, the connection to a
kvstore, that it names; one of another epoch means nothing.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

SCHEDULER = -1  # in place of a rank
VERSION = 1  # of these messages: both ends run the same release, and say so first


# From a connector.


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message of a connection.

    Attributes:
        rank: of the connector; `SCHEDULER`: it is the one of vLLM's scheduler.
    """

    rank: int
    version: int = VERSION
    kind: Literal["hello"] = "hello"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A rank has its KV cache.

    Attributes:
        page_bytes: of one layer's block in this rank.
        layout: what else makes two caches' bytes interchangeable: dtype, shape and order of a page,
            backend, instruction set; part of the fingerprint.
        has_tails: a block that is not full can be stored without what is behind its tokens.
    """

    rank: int
    num_ranks: int
    num_layers: int
    num_blocks: int
    page_bytes: int
    layout: str
    has_tails: bool
    kind: Literal["registered"] = "registered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Detached:
    """A rank's answer to `Closed`: from now on it writes to no page of the arena."""

    rank: int
    kind: Literal["detached"] = "detached"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseWanted:
    """The scheduler needs pages for so many more blocks; answered by `Leased`, with fewer or none
    where there is no room."""

    epoch: int
    num_blocks: int
    kind: Literal["lease_wanted"] = "lease_wanted"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWanted:
    """A preempted request comes back; answered by `Staged`.

    Attributes:
        keys: packed, of the blocks that it lacks.
        num_before: blocks of it that precede these.
    """

    epoch: int
    request_id: str
    keys: str
    num_before: int
    kind: Literal["stage_wanted"] = "stage_wanted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketDone:
    """What was staged for a request is not read any more.

    Attributes:
        num_loaded: tokens that came from it.
    """

    epoch: int
    request_id: str
    num_loaded: int
    kind: Literal["ticket_done"] = "ticket_done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A block that is being copied to the arena; see `BlockWrite`.

    Attributes:
        key, parent, owner, replaces: hex.
        arena_pages: one for each layer of each rank, as the kvstore numbers layers.
    """

    number: int
    key: str
    parent: str
    tokens: list[int]
    arena_pages: list[int]
    owner: str
    replaces: str = ""
    expiry_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Writes:
    """Blocks whose copies were ordered. Each ends in a `Stored` of every rank."""

    epoch: int
    writes: list[Write]
    kind: Literal["writes"] = "writes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A rank's copies are over.

    Attributes:
        checksums: by `Write.number`, xxh3-64 of the page of each layer; empty: it was not copied.
    """

    epoch: int
    rank: int
    checksums: dict[int, list[int]]
    kind: Literal["stored"] = "stored"


@dataclass(frozen=True, slots=True, kw_only=True)
class PagesReturned:
    """Leased pages that the scheduler does not use."""

    epoch: int
    pages: list[int]
    kind: Literal["pages_returned"] = "pages_returned"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheState:
    """vLLM's KV cache, now and then.

    Attributes:
        num_free: blocks that can be given to requests.
        num_cached: of those, blocks that hold a prefix.
        num_preemptions: since the start.
    """

    num_free: int
    num_cached: int
    num_preemptions: int = 0
    kind: Literal["cache_state"] = "cache_state"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadsMeasured:
    """A rank copied so much to its KV cache, after so long; pages that could not be loaded."""

    rank: int
    num_bytes: int
    duration_ns: int
    num_failed: int = 0
    kind: Literal["loads_measured"] = "loads_measured"


FromConnector: TypeAlias = (
    Hello
    | Registered
    | Detached
    | LeaseWanted
    | StageWanted
    | TicketDone
    | Writes
    | Stored
    | PagesReturned
    | CacheState
    | LoadsMeasured
)


# To a connector.


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """There is a kvstore; to all.

    Attributes:
        fingerprint: of the model and its KV layout.
    """

    epoch: int
    arena_path: str
    fingerprint: str
    kind: Literal["opened"] = "opened"


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """There is none any more; to all. A rank answers `Detached` once no copy to the arena is under
    way."""

    kind: Literal["closed"] = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What the kvstore has of a request; to the scheduler, before the request comes or in answer to
    `StageWanted`.

    Attributes:
        num_before: blocks of it that precede these.
        num_blocks: that are staged; 0: none, or it cannot be asked.
        num_tokens: of the request, from its first on, whose KV is in the blocks up to the last
            staged one; its last block may be a tail.
        pages, generations: packed (``i`` and ``Q``), ``[layer][block]``.
        ready_in_ns: for each layer, when its last page is promised; empty: all are there.
    """

    epoch: int
    request_id: str
    num_before: int = 0
    num_blocks: int = 0
    num_tokens: int = 0
    pages: str = ""
    generations: str = ""
    ready_in_ns: list[int] = field(default_factory=list)
    kind: Literal["staged"] = "staged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """Pages for new blocks; to the scheduler."""

    epoch: int
    pages: list[int]
    kind: Literal["leased"] = "leased"


@dataclass(frozen=True, slots=True, kw_only=True)
class WritesEnded:
    """These writes are over in all ranks, committed or not: their blocks may be used again; to the
    scheduler."""

    epoch: int
    numbers: list[int]
    kind: Literal["writes_ended"] = "writes_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """A session was deleted; to the scheduler. Its blocks and those of `keys` are evicted from
    vLLM's prefix cache, and its requests store nothing any more.

    Attributes:
        owner: hex.
        keys: packed.
    """

    owner: str
    keys: str
    kind: Literal["forget"] = "forget"


ToConnector: TypeAlias = Opened | Closed | Staged | Leased | WritesEnded | Forget


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestKv:
    """What a request's `kv_transfer_params` say under ``symphony``.

    Attributes:
        root: hex; parent of its first block's key.
        owner: hex; its session.
        num_history: of its tokens, how many of the first its session's last turn left the KV of.
        is_private: nothing of it is stored.
        is_hint: it only brings blocks into vLLM's prefix cache.
        expiry_s: how long its KV outlives its last use; 0: as every tier has it.
    """

    root: str
    owner: str
    num_history: int = 0
    is_private: bool = False
    is_hint: bool = False
    expiry_s: int = 0
