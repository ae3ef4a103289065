"""Between a worker and the KV connectors in its vLLM's processes, over a Unix socket.

The worker owns the connection to the kvstore: leases, tickets, commits. A connector in vLLM's
scheduler (one) decides which blocks are loaded and stored; a connector in each rank copies pages
between the rank's KV cache and the host's arena. Bulk bytes never travel here.

A block of ``num_layers`` layers over ``num_ranks`` tensor-parallel ranks is, to the kvstore, a
block of ``num_layers * num_ranks`` layers: page ``layer * num_ranks + rank`` is the part of `rank`.
An epoch is a connection to a kvstore; what belongs to another one than the latest means nothing.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

SCHEDULER = -1  # in place of a rank
PARAMS = "symphony"  # of `kv_transfer_params`: where `RequestKv` stands, as JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """What the kvstore has staged of a request.

    Attributes:
        num_before: blocks of it that precede these.
        num_blocks: that are staged.
        num_tokens: of the request, from its first on, whose KV is in the blocks up to the last
            staged one; that may be a tail.
        pages, generations: packed (``i`` and ``Q``), ``[layer][block]``.
        ready_at_ns: for each layer, when its last page is promised, monotonic; empty: all are
            there.
    """

    epoch: int
    num_before: int = 0
    num_blocks: int = 0
    num_tokens: int = 0
    pages: str = ""
    generations: str = ""
    ready_at_ns: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestKv:
    """How a request's KV is found and kept; a request without it has none beyond vLLM's cache.

    Attributes:
        name: of the request, in messages: vLLM has another one for it.
        root: hex; parent of its first block's key.
        keys: packed; of its first full blocks, as many as are known.
        owner: hex; its session.
        num_history: of its tokens, how many of the first its session's last turn left the KV of.
        epoch: connection to the kvstore that was asked.
        num_asked: leading blocks that it was asked for; those that the ticket lacks are not there.
        must_ask: the kvstore was not asked; the scheduler's connector does.
        is_private: nothing of it is stored.
        expiry_s: how long its KV outlives its last use; 0: as every tier has it.
    """

    name: str
    root: str
    owner: str
    keys: str = ""
    num_history: int = 0
    epoch: int = 0
    num_asked: int = 0
    must_ask: bool = False
    is_private: bool = False
    expiry_s: int = 0
    ticket: Ticket | None = None


# From a connector.


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The first message of a connection: the scheduler's connector is there, or a rank has its KV
    cache.

    Attributes:
        rank: `SCHEDULER`: it says which model by which version of vLLM, and the others the rest.
        num_ranks: that come as well.
        model: folder or hub id.
        num_layers: of the rank's cache.
        page_bytes: of one layer's block in this rank.
        layout: what else makes two caches' bytes interchangeable: dtype, shape and order of a page,
            backend, instruction set; part of the fingerprint.
        token_rows: runs of tokens, of equal bytes each, that a page consists of; 0: a block that
            is not full cannot be stored without what is behind its tokens.
        error: why nothing of this cache can be kept; empty: it can.
    """

    rank: int
    num_ranks: int = 1
    model: str = ""
    version: str = ""
    num_layers: int = 0
    num_blocks: int = 0
    page_bytes: int = 0
    layout: str = ""
    token_rows: int = 0
    error: str = ""
    kind: Literal["registered"] = "registered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """A rank's answer to `Opened`."""

    epoch: int
    error: str = ""
    kind: Literal["attached"] = "attached"


@dataclass(frozen=True, slots=True, kw_only=True)
class Detached:
    """A rank's answer to `Closed`: it writes to no page of that epoch's arena any more."""

    epoch: int
    kind: Literal["detached"] = "detached"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseWanted:
    """The scheduler needs pages for so many more blocks; answered by `Leased`, with fewer or none
    where there is no room.
    """

    epoch: int
    num_blocks: int
    kind: Literal["lease_wanted"] = "lease_wanted"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWanted:
    """A preempted request comes back, or one that was not asked about yet; answered by `Staged`.

    Attributes:
        keys: packed, of the blocks that it lacks.
        num_before: blocks of it that precede these.
    """

    name: str
    keys: str
    num_before: int
    kind: Literal["stage_wanted"] = "stage_wanted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketUsed:
    """What was staged for a request is not read any more.

    Attributes:
        num_local: tokens that were in vLLM's cache.
        num_loaded: tokens that came from the ticket's pages.
    """

    name: str
    num_local: int = 0
    num_loaded: int = 0
    kind: Literal["ticket_used"] = "ticket_used"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A block that is being copied to the arena; see `BlockWrite`.

    Attributes:
        key, parent, owner, replaces: hex.
        tokens: packed.
        arena_pages: packed, one for each layer of each rank, as the kvstore numbers layers.
    """

    number: int
    key: str
    parent: str
    tokens: str
    arena_pages: str
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
        numbers: of the writes.
        checksums: of each, packed ``Q``, xxh3-64 of the page of each layer; empty: it was not
            copied.
    """

    rank: int
    numbers: list[int]
    checksums: list[str]
    kind: Literal["stored"] = "stored"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """The scheduler's answer to `Forget`: what it says of that session from now on is of requests
    that came later.
    """

    owner: str
    kind: Literal["forgotten"] = "forgotten"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadsMeasured:
    """A rank copied so much to its KV cache, after so long; pages that could not be loaded."""

    num_bytes: int
    duration_ns: int
    num_failed: int = 0
    kind: Literal["loads_measured"] = "loads_measured"


FromConnector: TypeAlias = Annotated[
    Registered
    | Attached
    | Detached
    | LeaseWanted
    | StageWanted
    | TicketUsed
    | Writes
    | Stored
    | Forgotten
    | LoadsMeasured,
    Field(discriminator="kind"),
]


# To a connector.


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """There is a kvstore. To the ranks, and to the scheduler when they have attached.

    Attributes:
        lease_path: a file that each process locks that writes to the arena: the kvstore takes
            leased pages back when no process has it locked.
        num_pages: of one block: layers times ranks.
        has_tails: a block that is not full can be stored.
        fingerprint: of the model, where no worker says with each request how its KV is kept, and
            the scheduler's connector does itself; empty: one does.
    """

    epoch: int
    arena_path: str
    lease_path: str
    num_pages: int
    fingerprint: str = ""
    has_tails: bool = False
    kind: Literal["opened"] = "opened"


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """There is none any more; to all. A rank answers `Detached` once no copy to the arena is under
    way.
    """

    epoch: int
    kind: Literal["closed"] = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """To the scheduler: the answer to `StageWanted`; None: there is nothing, or it cannot be
    asked.
    """

    name: str
    ticket: Ticket | None = None
    kind: Literal["staged"] = "staged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """Pages for new blocks; to the scheduler."""

    epoch: int
    pages: str
    kind: Literal["leased"] = "leased"


@dataclass(frozen=True, slots=True, kw_only=True)
class WritesEnded:
    """No rank reads these writes' blocks any more; to the scheduler.

    Attributes:
        unstored: those of them that have no copy.
    """

    numbers: list[int]
    unstored: list[int] = field(default_factory=list)
    kind: Literal["writes_ended"] = "writes_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The kvstore did not take these blocks; to the scheduler.

    Attributes:
        keys: packed.
    """

    keys: str
    kind: Literal["refused"] = "refused"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A request is about to be aborted; to the scheduler.

    Attributes:
        num_kept: its leading tokens that its session's next turn begins with.
    """

    name: str
    num_kept: int
    kind: Literal["cut"] = "cut"


ToConnector: TypeAlias = Annotated[
    Opened | Closed | Staged | Leased | WritesEnded | Refused | Forget | Cut,
    Field(discriminator="kind"),
]
