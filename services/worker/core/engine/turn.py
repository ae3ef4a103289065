"""A turn as the engine core holds it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from services.worker.core.adapters.image import Image
from services.worker.core.adapters.stats import Start
from services.worker.core.effects import LayerWait
from services.worker.core.kv.pages import Block
from services.worker.core.kv.residency import Chain
from services.worker.core.step import StepResult
from shared.blocks import BlockKey, child_key, sequence_root
from shared.ids import FrontendId, HostId, SessionId, TenantId, TurnId
from shared.messages import AdapterRef, KvFrom, KvPlace, SamplingParams, TokenLogprobs
from shared.owners import NOBODY, OwnerKey, owner_key

NO_SLOT = -1
WAITS_MAX = 256  # that are kept of a turn
WAIT_MIN_NS = 100_000  # shorter ones are how long looking takes


class TurnState(Enum):
    """Where a turn stands in the engine."""

    WAITING = "waiting"  # for the kvstore's answer, for pages and a place in the batch
    RUNNING = "running"
    LEAVING = "leaving"  # it is over, but a step in flight still runs on its pages


@dataclass(slots=True, eq=False)
class Turn:
    """One attempt at one turn.

    Attributes:
        tokens: the prompt, earlier attempts' output, then what is generated here.
        num_known: length of `tokens` when it came; what lies behind was generated here.
        num_generated_before: tokens that earlier attempts generated, part of `num_known`.
        num_history: of its tokens, how many of the first its session's last turn left the KV of, as
            its frontend tells; where that is wrong, its tail is looked for in vain.
        root: parent key of the first block; a sequence that becomes long has another one.
        owner: its session, as blocks name it.
        is_private: its session was deleted: what it computes nobody finds, and it goes nowhere.
        slo_ttft_ns: target for the time from `arrived_at_ns` to the first token; 0: none, None: the
            engine's default.
        slo_tpot_ns: target for the mean time between further tokens; 0, None: none.
        was_lost: an earlier attempt was lost: the scheduler wants to hear of the first token.
        trace: of the attempt, see `shared.tracing`; if it has one, what it waits for is kept.
        is_called: the batch that it waits in has opened.
        num_computed: leading tokens whose KV is in this turn's pages.
        num_planned: the same, once the steps in flight have landed.
        num_flights: steps in flight that have a row of it.
        num_sampling: tokens that those choose; the turn's next ones, not known yet.
        is_paused: it ran, and made way for an urgent one; it holds nothing.
        is_void: one of those rows failed, so that what the others give is no good.
        prefix: its leading blocks, which others can find and run on as well.
        tail: the last of those, if it has only the end of the history and the turn goes on in it;
            nobody finds it any more once the turn runs.
        own: the blocks behind those, with all their pages.
        untold: numbers of blocks that no plan has told of yet.
        slot: its line in the executor's block tables while it runs.
        look_again_at_ns: when a pass would not have to wait for its history, as was forecast last.
        look_not_before_ns: the forecast is not made again before.
        num_cached: leading tokens that did not have to be computed when it was first admitted.
        found: where they were when the turn came, each place with how many blocks, from the first.
        num_kept: of a cancelled one: its leading tokens that the session's next turn begins with.
        adapter: that it runs on; None: on the base model.
        num_image_blocks: of the adapter's image.
        image: the adapter's, here or on its way; shared with other turns.
        kv_at: how many leading blocks of its session are on which hosts, as far as known.
        kv_from: the lowest tier that its history may come from.
        expiry_s: how long its KV outlives its last use; 0: as every tier has it.
        expected_as: it was announced under this name, too; `NOBODY`: under its session's only.
        can_be_assisted: helpers can compute all that its adapter adds.
        adapter_start: how it came to its adapter, as far as is known.
        tokens_max: tokens, prompt and output together, that there is room for beside the image.
        staged_at_ns, num_staged: when the kvstore answered, and with how many blocks.
        short_rope_max: longer sequences have KV of another kind, see `EngineLimits`; 0: none.
        is_long: it is such a sequence, from its first position on.
        waits: of the passes that it was in, for a layer's pages, its own or others'; if it is
            traced.
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
    block_tokens: int
    priority: int = 0
    slo_ttft_ns: int | None = None
    slo_tpot_ns: int | None = None
    request_id: str = ""
    was_lost: bool = False
    is_private: bool = False
    num_history: int = 0
    adapter: AdapterRef | None = None
    num_image_blocks: int = 0
    kv_at: Mapping[HostId, int] = field(default_factory=dict)
    kv_from: KvFrom = "any"
    expiry_s: int = 0
    expected_as: OwnerKey = NOBODY
    trace: str = ""
    is_called: bool = False
    owner: OwnerKey = field(init=False)
    state: TurnState = TurnState.WAITING
    num_known: int = field(init=False)
    keys: list[BlockKey] = field(default_factory=list)
    num_computed: int = 0
    num_planned: int = 0
    num_flights: int = 0
    num_sampling: int = 0
    is_paused: bool = False
    is_void: bool = False
    look_again_at_ns: int = 0
    look_not_before_ns: int = 0
    num_cached: int = 0
    found: dict[KvPlace, int] = field(default_factory=dict)
    num_kept: int = 0
    image: Image | None = None
    can_be_assisted: bool = False
    adapter_start: Start = "waited"
    tokens_max: int = 0
    short_rope_max: int = 0
    is_long: bool = False
    prefix: Chain = field(init=False)
    tail: Block | None = None
    own: list[Block] = field(default_factory=list)
    untold: list[int] = field(default_factory=list)
    slot: int = NO_SLOT
    first_step_at_ns: int | None = None
    first_token_at_ns: int | None = None
    staged_at_ns: int | None = None
    num_staged: int = 0
    waits: list[LayerWait] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_known = len(self.tokens)
        self.owner = owner_key(self.tenant, self.session_id)
        self.prefix = Chain(self.owner)

    def cached_in(self) -> dict[KvPlace, int]:
        """Where the prompt's tokens were that were not computed, when the turn came: those that are
        cached beyond what was found have come into the pool since, for somebody else.
        """
        told: dict[KvPlace, int] = {}
        num_left = min(self.num_cached, self.num_prompt)
        for place, num_blocks in self.found.items():
            told[place] = min(num_blocks * self.block_tokens, num_left)
            num_left -= told[place]
        if num_left:
            told["pool"] = told.get("pool", 0) + num_left
        return {place: num for place, num in told.items() if num}

    @property
    def announced_as(self) -> tuple[OwnerKey, ...]:
        """Whose hints are used up now that it is here."""
        return (self.owner,) if self.expected_as == NOBODY else (self.owner, self.expected_as)

    @property
    def num_prompt(self) -> int:
        return self.num_known - self.num_generated_before

    @property
    def num_generated(self) -> int:
        """Generated tokens of all attempts."""
        return len(self.tokens) - self.num_known + self.num_generated_before

    @property
    def length(self) -> int:
        """Its tokens, with those that steps in flight choose."""
        return len(self.tokens) + self.num_sampling

    @property
    def outgrows_short(self) -> bool:
        """Whether its KV is that of a short sequence, and its next token makes it a long one."""
        return not self.is_long and 0 < self.short_rope_max < self.length

    @property
    def can_run(self) -> bool:
        """Whether the next step may have a row of it."""
        return self.state is TurnState.RUNNING and not self.is_void

    @property
    def is_decoding(self) -> bool:
        """Whether only the KV of its last token is to be computed."""
        return self.num_planned == len(self.tokens) + self.num_sampling - 1

    @property
    def awaits_last(self) -> bool:
        """Whether a token that a step in flight chooses is its last whatever it is."""
        if not self.num_sampling:
            return False
        num_generated = self.num_generated + self.num_sampling
        return self.length >= self.tokens_max or num_generated >= self.sampling.max_tokens

    @property
    def num_reusable(self) -> int:
        """Leading tokens whose KV may come from a cache: one is always computed, and all of them
        are when the prompt's log-probabilities are wanted."""
        if self.sampling.prompt_logprobs is not None and not self.num_generated:
            return 0
        return len(self.tokens) - 1

    @property
    def num_reusable_blocks(self) -> int:
        """Full blocks of those."""
        return self.num_reusable // self.block_tokens

    @property
    def tail_index(self) -> int:
        """Number of the block in which its history ends."""
        return self.num_history // self.block_tokens

    @property
    def has_tail(self) -> bool:
        """Whether its history ends within a block, and some of that is of use."""
        start = self.tail_index * self.block_tokens
        return start < min(self.num_history, self.num_reusable)

    @property
    def num_in_sight(self) -> int:
        """Leading tokens whose KV is here, on its way, or staged."""
        staged = self.prefix.staged
        if staged is None:
            return self.num_planned
        return max(self.num_planned, self.tokens_up_to(self.prefix.num_in_sight, staged.keys[-1]))

    @property
    def num_to_compute(self) -> int:
        """What a waiting turn will probably have to compute, in tokens."""
        num_known = self.num_in_sight
        if self.prefix.is_asked:
            num_known = max(num_known, min(self.num_history, self.num_reusable))
        return len(self.tokens) - num_known

    @property
    def num_blocks(self) -> int:
        """Blocks that it has the pages of."""
        return len(self.prefix.blocks) + len(self.own)

    def held(self, index: int) -> Block:
        """Its block `index`."""
        shared = self.prefix.blocks
        return shared[index] if index < len(shared) else self.own[index - len(shared)]

    def key(self, index: int) -> BlockKey:
        """Key of full block `index`, computed on first use."""
        while len(self.keys) <= index:
            parent = self.keys[-1] if self.keys else self.root
            self.keys.append(child_key(parent, self.block(len(self.keys))))
        return self.keys[index]

    def reusable_keys(self) -> list[BlockKey]:
        """Keys of its reusable blocks."""
        if num_blocks := self.num_reusable_blocks:
            self.key(num_blocks - 1)
        return self.keys[:num_blocks]

    def tail_key(self) -> BlockKey:
        """Key of what its history has of the block in which it ends."""
        start = self.tail_index * self.block_tokens
        return child_key(self.parent_key(self.tail_index), self.tokens[start : self.num_history])

    def tokens_up_to(self, num_blocks: int, last: BlockKey) -> int:
        """Its leading tokens whose KV is in so many blocks, of which the last has this key."""
        if self.has_tail and num_blocks == self.tail_index + 1 and last == self.tail_key():
            return min(self.num_history, self.num_reusable)
        return num_blocks * self.block_tokens

    def parent_key(self, index: int) -> BlockKey:
        return self.key(index - 1) if index else self.root

    def block(self, index: int) -> list[int]:
        """Tokens of block `index`."""
        return self.tokens[index * self.block_tokens : (index + 1) * self.block_tokens]

    def on_outgrown(self) -> None:
        """It is a long sequence from now on, and holds nothing: its tokens so far are to be
        computed as a long prompt."""
        assert not self.num_blocks, "its blocks hold the KV of a short sequence"
        self.root = sequence_root(self.root, self.length, self.short_rope_max)
        self.is_long = True
        self.keys = []
        self.prefix = Chain(self.owner)

    def add_blocks(self, blocks: list[Block]) -> None:
        """Blocks behind those that it has, with all their pages."""
        num_blocks = self.num_blocks
        self.untold += range(num_blocks, num_blocks + len(blocks))
        self.own += blocks

    def share(self, block: Block) -> None:
        """Its first block that is its own alone can be found from now on, or gives way to a twin
        that can be."""
        if self.own.pop(0) is not block:
            self.untold.append(len(self.prefix.blocks))
        self.prefix.blocks.append(block)

    def on_planned(self, end: int) -> None:
        """A step that computes its tokens up to `end` is in flight."""
        self.num_flights += 1
        self.num_sampling += end == len(self.tokens) + self.num_sampling
        self.num_planned = end

    def on_landed(self, *, is_sampled: bool) -> None:
        """The first step in flight that has a row of it is over."""
        self.num_flights -= 1
        self.num_sampling -= is_sampled

    def note_waits(self, result: StepResult) -> None:
        """A pass that it was in is over."""
        for layer, began_ns in result.stall_at_ns.items():
            took_ns = result.stall_ns[layer]
            if took_ns >= WAIT_MIN_NS and len(self.waits) < WAITS_MAX:
                self.waits.append(LayerWait(layer, began_ns, began_ns + took_ns))

    def on_void(self) -> None:
        """What the steps that had rows of it computed counts for nothing."""
        self.num_planned = self.num_computed

    def on_prefix(self) -> None:
        """Its prefix may have grown by blocks whose KV is here or coming."""
        assert not self.own, "its own blocks stand behind shared ones"
        blocks = self.prefix.blocks
        num_blocks, self.tail = len(blocks), None
        num_tokens = self.tokens_up_to(num_blocks, blocks[-1].key) if blocks else 0
        if num_tokens < num_blocks * self.block_tokens:
            self.tail = blocks[-1]
        self.untold = list(range(num_blocks))
        self.num_computed = self.num_planned = num_tokens

    def on_released(self) -> None:
        """All its blocks were taken from it."""
        self.own, self.untold, self.tail = [], [], None
        self.num_computed = self.num_planned = 0
