"""What the engine core asks its shell to do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from shared.blocks import BlockKey
from shared.ids import DEFAULT_TENANT, FrontendId, HostId, SessionId, TenantId, TurnId
from shared.owners import NO_OWNER, OwnerKey
from shared.wire.messages import AdapterRef, KvPlace, NextToken, TurnDelta, TurnEnd

NO_KEY = BlockKey(b"")  # of a block that cannot be found


@dataclass(frozen=True, slots=True)
class StageTurn:
    """Ask the kvstore for these blocks; answer with `EngineCore.on_staged`.

    Attributes:
        kv_at: how many leading blocks of the sequence are on which hosts, as far as known.
        num_before: blocks of it that precede these.
        patience_ns: for so long the turn waits for the answer.
        tenant, session_id: whose sequence it is.
        trace: the turn's.
    """

    turn_id: TurnId
    attempt: int
    keys: list[BlockKey]
    request_id: str = ""
    kv_at: Mapping[HostId, int] = field(default_factory=dict)
    num_before: int = 0
    patience_ns: int = 0
    tenant: TenantId = DEFAULT_TENANT
    session_id: SessionId | None = None
    trace: str = ""


@dataclass(frozen=True, slots=True)
class StageSession:
    """Ask the kvstore for an expected session's blocks; answer with `on_session_staged`, by
    `number`.

    Attributes:
        kv_at: as in `StageTurn`.
        keys: of the blocks; empty: those of the session's record.
        trace: of the advisory.
    """

    number: int
    tenant: TenantId
    session_id: SessionId
    priority: int
    kv_at: Mapping[HostId, int] = field(default_factory=dict)
    keys: tuple[BlockKey, ...] = ()
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Prefetched:
    """The outcome of an announcement here that is traced, or of a turn that may move here: nothing
    more is loaded for it.

    Attributes:
        trace: of the advisory; empty: none.
        asked_at_ns: when the kvstore was asked.
        num_staged: blocks that it had of the session.
        num_here: blocks of those in the pool now, whole or in part.
        adapter_hash: of which they are; empty: of the session's history.
        running: the turn that may move here; None: the turn is still to come.
    """

    trace: str
    asked_at_ns: int
    num_staged: int
    num_here: int
    adapter_hash: str = ""
    running: TurnId | None = None


@dataclass(frozen=True, slots=True)
class StageImage:
    """Ask the kvstore for these blocks of an adapter's image; answer with `on_image_staged`, by
    `number`.

    Attributes:
        expected_by: tenant whose turn is announced; None: a turn that is here waits.
    """

    number: int
    adapter_hash: str
    keys: list[BlockKey]
    expected_by: TenantId | None = None


@dataclass(frozen=True, slots=True)
class BuildImage:
    """Make pages of an adapter's image from its files; answer each with `on_loaded`.

    Attributes:
        places: layer and number of the block, of each page; low layers first.
    """

    adapter: AdapterRef
    places: list[tuple[int, int]]
    pool_pages: list[int]


@dataclass(frozen=True, slots=True)
class PageLoads:
    """Copy arena pages to pool pages, all of one layer, each once it is ready; answer each with
    `on_loaded`. The lists are of one length.

    Attributes:
        priority: of the advisory, or of a turn that is here; see `shared.wire.urgency`.
        epoch: connection to a kvstore that the arena's pages were promised on.
        ready_at_ns: when the last of them was promised to be in the arena; 0: all are.
    """

    priority: int
    layer: int
    arena_pages: list[int]
    generations: list[int]
    pool_pages: list[int]
    epoch: int = 0
    ready_at_ns: int = 0


@dataclass(frozen=True, slots=True)
class LoadPages:
    """Start these loads, in the order of `shared.wire.urgency`."""

    loads: list[PageLoads]


@dataclass(frozen=True, slots=True)
class CallBack:
    """Do not load into these pages, as far as that has not begun; answer for those with
    `on_called_back`.
    """

    pool_pages: list[int]


@dataclass(frozen=True, slots=True)
class ReleaseTicket:
    """The kvstore may unpin this stage's pages."""

    ticket: int


@dataclass(frozen=True, slots=True)
class TrimTicket:
    """The kvstore may unpin all of this stage behind its first `num_blocks`."""

    ticket: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class LeasePages:
    """Ask the kvstore for arena pages to write into; answer with `on_leased`."""

    num_pages: int


@dataclass(frozen=True, slots=True)
class BlockWrite:
    """A block to copy below.

    Attributes:
        number: names this write; no two have the same.
        pool_pages, arena_pages: one page a layer.
        owner: the session that made it.
        replaces: key of a block that begins as this one does, and is of no use beside it.
        is_partial: its pages are not full: what is behind its tokens is no KV of it, and must not
            stay in a copy.
        expiry_s: how long it outlives its last use below; 0: as every tier has it.
    """

    number: int
    key: BlockKey
    parent: BlockKey
    tokens: list[int]
    pool_pages: list[int]
    arena_pages: list[int]
    owner: OwnerKey = NO_OWNER
    replaces: BlockKey = NO_KEY
    is_partial: bool = False
    expiry_s: int = 0


@dataclass(frozen=True, slots=True)
class StoreBlocks:
    """Copy these blocks to the arena, beside the steps that follow; answer with `on_stored`.

    `epoch` is the connection to a kvstore that the arena's pages were leased on.
    """

    writes: list[BlockWrite]
    epoch: int


@dataclass(frozen=True, slots=True)
class CommitBlocks:
    """These writes' bytes are in the arena and right; answer with `on_committed`."""

    writes: list[BlockWrite]
    checksums: list[list[int]]  # xxh3-64 of each layer's page, for each write


@dataclass(frozen=True, slots=True)
class ReturnPages:
    """Leased arena pages that were not used well; the kvstore may have them back."""

    arena_pages: list[int]


@dataclass(frozen=True, slots=True)
class Emit:
    """New tokens, or the end, of a turn."""

    frontend_id: FrontendId
    delta: TurnDelta


@dataclass(frozen=True, slots=True)
class EmitTokens:
    """The next tokens of turns that have nothing else to say in a step."""

    frontend_id: FrontendId
    tokens: list[NextToken]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnAccount:
    """What an attempt came to, for the log.

    Attributes:
        num_computed: tokens of its prompt that it computed; 0 if it never ran.
    """

    request_id: str
    num_prompt: int
    num_computed: int
    num_generated: int


@dataclass(frozen=True, slots=True)
class LayerWait:
    """A pass stood before a layer, ns, monotonic."""

    layer: int
    began_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTimes:
    """What an attempt came to, for its trace. Instants are monotonic, ns; None: that did not come.

    Attributes:
        num_staged: blocks that the kvstore had of it.
        cached_in: prompt tokens that were not computed, by where they were.
    """

    arrived_at_ns: int
    staged_at_ns: int | None
    num_staged: int
    first_step_at_ns: int | None
    first_token_at_ns: int | None
    cached_in: Mapping[KvPlace, int]
    waits: tuple[LayerWait, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The scheduler is to know that this attempt is over.

    Attributes:
        account: None if it never began.
        times: None if it is not traced.
    """

    end: TurnEnd
    account: TurnAccount | None = None
    times: TurnTimes | None = None


@dataclass(frozen=True, slots=True)
class ReportSoon:
    """A turn that was lost before makes tokens: the next report is not to wait for its time."""


Effect: TypeAlias = (
    StageTurn
    | StageSession
    | StageImage
    | BuildImage
    | LoadPages
    | CallBack
    | ReleaseTicket
    | TrimTicket
    | LeasePages
    | StoreBlocks
    | CommitBlocks
    | ReturnPages
    | Emit
    | EmitTokens
    | Ended
    | Prefetched
    | ReportSoon
)
