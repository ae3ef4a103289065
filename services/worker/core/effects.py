"""What the engine core asks its shell to do, and the plan of one step."""

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from services.worker.core.turn import Table, Turn
from shared.blocks import BlockKey
from shared.ids import FrontendId, SessionId, TenantId, TurnId
from shared.messages import TokenLogprobs, TurnDelta, TurnEnd
from shared.owners import NOBODY, OwnerKey


@dataclass(frozen=True, slots=True)
class StageTurn:
    """Ask the kvstore for these blocks; answer with `EngineCore.on_staged`."""

    turn_id: TurnId
    attempt: int
    keys: list[BlockKey]
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class StageSession:
    """Ask the kvstore for an expected session's blocks; answer with `on_session_staged`, by
    `number`.
    """

    number: int
    tenant: TenantId
    session_id: SessionId
    priority: int


@dataclass(frozen=True, slots=True)
class PageLoad:
    """Copy an arena page to a pool page once it is ready; answer with `on_loaded`.

    `epoch` is the connection to a kvstore that the arena page was promised on.
    """

    layer: int
    arena_page: int
    generation: int
    pool_page: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class LoadPages:
    """Start these loads; those of waiting turns go before prefetches, low layers first."""

    loads: list[PageLoad]
    is_prefetch: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseTicket:
    """The kvstore may unpin this stage's pages."""

    ticket: int


@dataclass(frozen=True, slots=True)
class LeasePages:
    """Ask the kvstore for arena pages to write into; answer with `on_leased`."""

    num_pages: int


@dataclass(frozen=True, slots=True)
class BlockWrite:
    """A full block to copy below.

    Attributes:
        pool_pages, arena_pages: one page a layer.
        row: row of the step that computes the block's last tokens and copies it layer by layer;
            `LATE` for a block that is whole already.
        owner: the session that made it.
    """

    key: BlockKey
    parent: BlockKey
    tokens: list[int]
    pool_pages: list[int]
    arena_pages: list[int]
    row: int
    owner: OwnerKey = NOBODY


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnAccount:
    """What an attempt came to, for the log."""

    request_id: str
    num_prompt: int
    num_cached: int
    num_generated: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The scheduler is to know that this attempt is over.

    Attributes:
        account: None if it never began.
    """

    end: TurnEnd
    account: TurnAccount | None = None


@dataclass(frozen=True, slots=True)
class ReportSoon:
    """A turn that was lost before makes tokens: the next report is not to wait for its time."""


LATE = -1

Effect: TypeAlias = (
    StageTurn
    | StageSession
    | LoadPages
    | ReleaseTicket
    | LeasePages
    | CommitBlocks
    | ReturnPages
    | Emit
    | Ended
    | ReportSoon
)


@dataclass(frozen=True, slots=True)
class Row:
    """One turn's part of a step: compute ``tokens[start:end]``, then sample if it is the end."""

    turn: Turn
    start: int
    end: int
    sample: bool
    awaits: int = 0  # leading blocks whose pages may still be loading
    awaited: list[list[int]] = field(default_factory=list)  # those pages, for each layer


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The whole decision of one step.

    Attributes:
        rows: decodes first, then prefill chunks.
        page_tables: int32 [num_layers, num_rows, max_blocks].
        writes: blocks to copy below while the pass runs.
        epoch: connection to a kvstore that the writes' arena pages were leased on.
    """

    rows: list[Row]
    page_tables: Table
    writes: list[BlockWrite]
    epoch: int = 0

    def alone(self, index: int) -> "StepPlan":
        """The part of it that is of one row."""
        writes = [replace(write, row=0) for write in self.writes if write.row == index]
        tables = self.page_tables[:, index : index + 1]
        return StepPlan([self.rows[index]], tables, writes, self.epoch)

    def late(self) -> "StepPlan":
        """The part of it that is of no row: writes of earlier blocks."""
        writes = [write for write in self.writes if write.row == LATE]
        return StepPlan([], self.page_tables[:, :0], writes, self.epoch)

    @property
    def num_tokens(self) -> int:
        return sum(row.end - row.start for row in self.rows)

    @property
    def num_decodes(self) -> int:
        """Rows of one token; all others are chunks of prompts."""
        return sum(row.end - row.start == 1 for row in self.rows)

    @property
    def num_prefill_tokens(self) -> int:
        return self.num_tokens - self.num_decodes


@dataclass(frozen=True, slots=True)
class Sampled:
    """A chosen token and, if asked for, log-probabilities."""

    token: int
    logprobs: TokenLogprobs | None = None


@dataclass(slots=True)
class StepResult:
    """What a step gave.

    Attributes:
        sampled: for each row, its token; None where none was asked for or the row failed.
        failed: rows whose history did not arrive; their results are void.
        broken: rows that cannot be computed, and why; their results are void.
        prompt_logprobs: for rows that asked, of this chunk's positions.
        checksums: for each of the plan's writes, xxh3-64 of each layer's page; empty for one that
            was not written, and altogether when none was.
        stall_ns: waiting for history, for each layer.
        duration_ns: of the whole step.
    """

    sampled: list[Sampled | None]
    failed: set[int] = field(default_factory=set)
    broken: dict[int, str] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    checksums: list[list[int]] = field(default_factory=list)
    stall_ns: list[int] = field(default_factory=list)
    duration_ns: int = 0
