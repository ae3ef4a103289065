"""A turn as the engine core holds it."""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from services.worker.core.pages import NO_PAGE, CachedBlock
from services.worker.core.staged import Staged
from shared.blocks import BlockKey, child_key
from shared.ids import FrontendId, SessionId, TenantId, TurnId
from shared.messages import SamplingParams, TokenLogprobs
from shared.owners import OwnerKey, owner_key

Table = npt.NDArray[np.int32]


class TurnState(Enum):
    """Where a turn stands in the engine."""

    STAGING = "staging"  # the kvstore is asked what it has
    WAITING = "waiting"  # for pages and a place in the batch
    RUNNING = "running"


@dataclass(slots=True, eq=False)
class Turn:
    """One attempt at one turn.

    Attributes:
        tokens: the prompt, earlier attempts' output, then what is generated here.
        num_known: length of `tokens` when it came; what lies behind was generated here.
        num_generated_before: tokens that earlier attempts generated, part of `num_known`.
        root: parent key of the first block.
        owner: its session, as blocks name it.
        is_private: its session was deleted: what it computes nobody finds, and it goes nowhere.
        slo_ttft_ns: target for the time from `arrived_at_ns` to the first token; 0: none, None: the
            engine's default.
        was_lost: an earlier attempt was lost: the scheduler wants to hear of the first token.
        is_called: the batch that it waits in has opened.
        num_computed: leading tokens whose KV is in this turn's pages.
        table: pool pages, int32 [num_layers, capacity in blocks].
        num_cached: leading tokens that did not have to be computed when it was first admitted.
        staged: the kvstore's answer, pinned until the loads from it are under way; its first block
            is block `staged_from`.
        blocks: cached blocks it runs on, in sequence order; private pages stand behind them.
    """

    turn_id: TurnId
    attempt: int
    frontend_id: FrontendId
    tenant: TenantId
    session_id: SessionId | None
    root: BlockKey
    tokens: list[int]
    num_generated_before: int
    sampling: SamplingParams
    arrived_at_ns: int
    num_layers: int
    block_tokens: int
    priority: int = 0
    slo_ttft_ns: int | None = None
    request_id: str = ""
    was_lost: bool = False
    is_private: bool = False
    is_called: bool = False
    owner: OwnerKey = field(init=False)
    state: TurnState = TurnState.WAITING
    num_known: int = field(init=False)
    keys: list[BlockKey] = field(default_factory=list)
    num_computed: int = 0
    num_cached: int = 0
    num_blocks: int = 0
    blocks: list[CachedBlock] = field(default_factory=list)
    table: Table = field(init=False)
    first_step_at_ns: int | None = None
    first_token_at_ns: int | None = None
    may_stage: bool = True
    stage_deadline_ns: int = 0
    staged: Staged | None = None
    staged_from: int = 0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_known = len(self.tokens)
        self.owner = owner_key(self.tenant, self.session_id)
        capacity = len(self.tokens) // self.block_tokens + 2
        self.table = np.full((self.num_layers, capacity), NO_PAGE, np.int32)

    @property
    def num_prompt(self) -> int:
        return self.num_known - self.num_generated_before

    @property
    def num_generated(self) -> int:
        """Generated tokens of all attempts."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_reusable_blocks(self) -> int:
        """Leading full blocks whose KV may come from a cache: one token is always computed, and
        all of them are when the prompt's log-probabilities are wanted."""
        if self.sampling.prompt_logprobs is not None and not self.num_generated:
            return 0
        return (len(self.tokens) - 1) // self.block_tokens

    def key(self, index: int) -> BlockKey:
        """Key of full block `index`, computed on first use."""
        while len(self.keys) <= index:
            parent = self.keys[-1] if self.keys else self.root
            self.keys.append(child_key(parent, self.block(len(self.keys))))
        return self.keys[index]

    def is_staged_from(self, staged: Staged) -> bool:
        """Whether `staged` answers what was asked last: blocks from `staged_from` on."""
        return not staged.keys or staged.keys[0] == self.key(self.staged_from)

    def parent_key(self, index: int) -> BlockKey:
        return self.key(index - 1) if index else self.root

    def block(self, index: int) -> list[int]:
        """Tokens of block `index`."""
        return self.tokens[index * self.block_tokens : (index + 1) * self.block_tokens]

    def set_pages(self, index: int, pages: list[int]) -> None:
        """Enter the pages of block `index`, one a layer."""
        if index >= self.table.shape[1]:
            grown = np.full((self.num_layers, 2 * self.table.shape[1]), NO_PAGE, np.int32)
            grown[:, : self.table.shape[1]] = self.table
            self.table = grown
        self.table[:, index] = pages

    def private_pages(self) -> list[int]:
        """Pages that no cached block holds."""
        pages: list[int] = self.table[:, len(self.blocks) : self.num_blocks].ravel().tolist()
        return pages
