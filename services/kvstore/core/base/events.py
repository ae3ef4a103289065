"""What happens to the kvstore's core: the calls of workers, unpacked."""

from dataclasses import dataclass, field

from shared.blocks import BlockKey
from shared.ids import HostId, TenantId, WorkerId
from shared.owners import NO_OWNER, OwnerKey
from shared.wire.messages import KvPlace


@dataclass(frozen=True, slots=True)
class Open:
    """A worker serves a model whose KV has this shape."""

    worker_id: WorkerId
    incarnation: str
    fingerprint: str
    num_layers: int
    page_bytes: int


@dataclass(frozen=True, slots=True)
class NewBlock:
    """A block whose every layer is in a leased page. Lists hold one entry a layer.

    Attributes:
        replaces: a block that begins as this one does, and may go; None: there is none.
        expiry_s: how long it outlives its last use; 0: as every tier has it.
    """

    key: BlockKey
    parent: BlockKey
    tokens: list[int]
    pages: list[int]
    checksums: list[int]
    owner: OwnerKey = NO_OWNER
    replaces: BlockKey | None = None
    expiry_s: int = 0


@dataclass(frozen=True, slots=True)
class Commit:
    """New blocks of one model.

    Attributes:
        last_lease: number of the last lease whose answer the worker received: no page of a later
            one is meant.
    """

    worker_id: WorkerId
    incarnation: str
    fingerprint: str
    page_bytes: int
    blocks: list[NewBlock]
    seq: int = 0
    last_lease: int = 0


@dataclass(frozen=True, slots=True)
class RemotePrefix:
    """Another host has so many leading blocks of what is to be staged."""

    host_id: HostId
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Stage:
    """Load and pin the longest stored prefix of `keys`.

    Attributes:
        blocks_max: as many as fit in an answer.
        hinted_by: tenant and session whose turn is only announced; None: a turn waits.
        num_before: blocks of the sequence that precede the first of `keys`.
        offer: where blocks are that this host lacks; None: nowhere, as far as is known.
        fingerprint: of the model; needed with an offer.
    """

    worker_id: WorkerId
    incarnation: str
    num_layers: int
    page_bytes: int
    keys: list[BlockKey]
    priority: int = 0
    blocks_max: int = 1 << 31
    hinted_by: tuple[TenantId, OwnerKey] | None = None
    offer: RemotePrefix | None = None
    fingerprint: str = ""
    num_before: int = 0


@dataclass(frozen=True, slots=True)
class Pinned:
    """What a stage pinned. `pages` and `generations` are laid out ``[layer][block]``.

    Attributes:
        num_pages_loading: pages that have yet to come, from the disk or another host.
        source_bytes_per_s: how fast they come, by how fast their sources were lately.
        ready_in_ns: for each layer, when the last of its pages will probably be there, from now;
            empty: all are.
        num_here: its first blocks of which nothing is to come.
        coming_from: where the first of the others is; None: nothing is to come.
    """

    ticket: int = 0
    num_blocks: int = 0
    pages: list[int] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)
    num_pages_loading: int = 0
    ready_in_ns: list[int] = field(default_factory=list)
    num_here: int = 0
    source_bytes_per_s: float = 0.0
    coming_from: KvPlace | None = None


@dataclass(frozen=True, slots=True)
class Renew:
    """A worker is alive and still holds these tickets and leased pages.

    Attributes:
        last_lease: number of the last lease whose answer it has.
        used: last blocks of sequences that turns ran on without asking for them.
    """

    worker_id: WorkerId
    incarnation: str
    tickets: list[int]
    page_bytes: int = 0
    leased: list[int] = field(default_factory=list)
    last_lease: int = 0
    used: list[BlockKey] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Release:
    """Unpin a ticket (0: none), but for its first `num_kept` blocks, and give leased pages back;
    `last_lease` as in `Commit`.
    """

    worker_id: WorkerId
    incarnation: str
    ticket: int = 0
    page_bytes: int = 0
    pages: list[int] = field(default_factory=list)
    seq: int = 0
    last_lease: int = 0
    num_kept: int = 0
