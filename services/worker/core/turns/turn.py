"""A turn as the engine core holds it."""

from dataclasses import dataclass, field
from enum import Enum

from services.worker.core.adapters.image import AdapterUse
from services.worker.core.step import Ints
from services.worker.core.turns.request import TurnRequest, TurnTargets, TurnTrace
from services.worker.core.turns.turn_cache import TurnCache
from shared.blocks import BlockKey
from shared.wire.messages import TokenLogprobs, TurnRef

NO_SLOT = -1


class TurnState(Enum):
    """Where a turn stands in the engine."""

    WAITING = "waiting"  # for the kvstore's answer, for pages and a slot in the batch
    RUNNING = "running"
    LEAVING = "leaving"  # it is over, but a step in flight still runs on its pages


@dataclass(slots=True, eq=False)
class Turn:
    """One attempt at one turn: what was asked, and how far it has come.

    Attributes:
        cache: its KV.
        tokens: the prompt, earlier attempts' output, then what is generated here.
        num_known: length of `tokens` when it came; what lies behind was generated here.
        length_max: tokens, prompt and output together, at which it is over: it asked for no more,
            or there is no room for more.
        slot: its line in the executor's block tables while it runs.
        num_computed: leading tokens whose KV is in this turn's pages.
        num_planned: the same, once the steps in flight have landed.
        num_flights: steps in flight that have a row of it.
        num_sampling: tokens that those choose; the turn's next ones, not known yet.
        is_paused: it ran, and made way for an urgent one; it holds nothing.
        is_void: one of those rows failed, so that what the others give is no good.
        prompt: its tokens as an array, if they are penalized in each step.
        look_again_at_ns: when a pass would not have to wait for its history, as last forecast.
        look_not_before_ns: the forecast is not repeated before.
    """

    request: TurnRequest
    cache: TurnCache
    adapter: AdapterUse = field(default_factory=AdapterUse)
    targets: TurnTargets = field(default_factory=TurnTargets)
    trace: TurnTrace = field(default_factory=TurnTrace)
    tokens: list[int] = field(init=False)
    num_known: int = field(init=False)
    length_max: int = 0
    state: TurnState = TurnState.WAITING
    slot: int = NO_SLOT
    num_computed: int = 0
    num_planned: int = 0
    num_flights: int = 0
    num_sampling: int = 0
    is_paused: bool = False
    is_void: bool = False
    prompt: Ints | None = None
    look_again_at_ns: int = 0
    look_not_before_ns: int = 0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = self.cache.tokens
        self.num_known = len(self.tokens)

    def ref(self) -> TurnRef:
        """The attempt, as reports name it."""
        request, adapter = self.request, self.adapter.ref
        return TurnRef(
            turn_id=request.turn_id,
            attempt=request.attempt,
            num_generated=self.num_generated,
            adapter_hash="" if adapter is None else adapter.adapter_hash,
            lora_rank=0 if adapter is None else adapter.lora_rank,
        )

    @property
    def num_prompt(self) -> int:
        return self.num_known - self.request.num_generated_before

    @property
    def num_generated(self) -> int:
        """Generated tokens of all attempts."""
        return len(self.tokens) - self.num_known + self.request.num_generated_before

    @property
    def length(self) -> int:
        """Its tokens, with those that steps in flight choose."""
        return len(self.tokens) + self.num_sampling

    @property
    def outgrows_short(self) -> bool:
        """Whether its KV is that of a short sequence, and its next token makes it a long one."""
        cache = self.cache
        return not cache.is_long and 0 < cache.short_rope_max < self.length

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
        return self.num_sampling > 0 and self.length >= self.length_max

    @property
    def num_reusable(self) -> int:
        """Leading tokens whose KV may come from a cache: one is always computed, and all of them
        are when the prompt's log-probabilities are wanted."""
        if self.request.sampling.prompt_logprobs is not None and not self.num_generated:
            return 0
        return len(self.tokens) - 1

    @property
    def num_reusable_blocks(self) -> int:
        """Full blocks of those."""
        return self.num_reusable // self.cache.block_tokens

    def reusable_keys(self) -> list[BlockKey]:
        """Keys of its reusable blocks."""
        if num_blocks := self.num_reusable_blocks:
            self.cache.key(num_blocks - 1)
        return self.cache.keys[:num_blocks]

    @property
    def has_tail(self) -> bool:
        """Whether its history ends within a block, and some of that is of use."""
        start = self.cache.tail_index * self.cache.block_tokens
        return start < min(self.cache.num_history, self.num_reusable)

    @property
    def num_in_sight(self) -> int:
        """Leading tokens whose KV is here, loading, or staged."""
        prefix = self.cache.prefix
        if prefix.staged is None:
            return self.num_planned
        num_staged = self.tokens_up_to(prefix.num_in_sight, prefix.staged.keys[-1])
        return max(self.num_planned, num_staged)

    @property
    def num_to_compute(self) -> int:
        """What a waiting turn will probably have to compute, in tokens."""
        num_known = self.num_in_sight
        if self.cache.prefix.is_asked:
            num_known = max(num_known, min(self.cache.num_history, self.num_reusable))
        return len(self.tokens) - num_known

    def tokens_up_to(self, num_blocks: int, last: BlockKey) -> int:
        """Its leading tokens whose KV is in so many blocks, of which the last has this key."""
        cache = self.cache
        if self.has_tail and num_blocks == cache.tail_index + 1 and last == cache.tail_key():
            return min(cache.num_history, self.num_reusable)
        return num_blocks * cache.block_tokens

    def on_planned(self, end: int) -> None:
        """A step that computes its tokens up to `end` is in flight."""
        self.num_flights += 1
        self.num_sampling += end == len(self.tokens) + self.num_sampling
        self.num_planned = end

    def on_landed(self, *, is_sampled: bool) -> None:
        """The first step in flight that has a row of it is over."""
        self.num_flights -= 1
        self.num_sampling -= is_sampled

    def on_void(self) -> None:
        """What the steps that had rows of it computed counts for nothing."""
        self.num_planned = self.num_computed

    def on_prefix(self) -> None:
        """Its prefix may have grown by blocks whose KV is here or loading."""
        cache = self.cache
        assert not cache.own, "its own blocks stand behind shared ones"
        blocks = cache.prefix.blocks
        num_blocks, cache.tail = len(blocks), None
        num_tokens = self.tokens_up_to(num_blocks, blocks[-1].key) if blocks else 0
        if num_tokens < num_blocks * cache.block_tokens:
            cache.tail = blocks[-1]
        cache.unreported_blocks = list(range(num_blocks))
        self.num_computed = self.num_planned = num_tokens

    def on_released(self) -> None:
        """All its blocks were taken from it."""
        cache = self.cache
        cache.own, cache.unreported_blocks, cache.tail = [], [], None
        self.num_computed = self.num_planned = 0
