"""A turn's history: KV of its prefix, and what others find once it is there.

That its blocks are on the device is `residency`'s concern. Here is what is so of KV alone: which
blocks can be reused, whether to fetch or to compute them, how computed ones enter the cache and go
below, and whose use is reported there.
"""

from dataclasses import dataclass, field, replace

from services.worker.core.costs.costs import StepCosts
from services.worker.core.costs.joining import PATIENCE_MIN_NS
from services.worker.core.effects import Effect, ReleaseTicket, StageTurn
from services.worker.core.engine_limits import EngineLimits, Estimates
from services.worker.core.kv.fetching import Supply, blocks_to_fetch
from services.worker.core.kv.pages import NO_KEY, Block
from services.worker.core.kv.residency import Residency
from services.worker.core.kv.staged import Staged
from services.worker.core.kv.write_behind import WriteBehind
from services.worker.core.turns.tails import Tails
from services.worker.core.turns.turn import Turn, TurnState
from shared.blocks import BlockKey, child_key

PROMISE_UNKNOWN_NS = 2_000_000_000  # so late it is rather computed, whatever that takes
COMPUTE_UNKNOWN_NS = 1_000_000_000  # before any prompt was computed
USED_MAX = 256  # sequences whose use is reported at once; of more, the latest


@dataclass(slots=True)
class History:
    """Attributes:
    costs: what computing takes.
    page_bytes: of one page below the pool.
    landed_at_ns: when pages came into the pool last, whosever they were.
    num_prefix_queries, num_prefix_hits: reusable blocks that turns came with, and those of them
        that did not have to be computed.
    """

    residency: Residency
    write_behind: WriteBehind
    estimates: Estimates
    costs: StepCosts
    limits: EngineLimits
    page_bytes: int
    block_tokens: int
    tails: Tails = field(init=False)
    _used: dict[BlockKey, None] = field(default_factory=dict, init=False)
    landed_at_ns: int = field(default=0, init=False)
    num_prefix_queries: int = field(default=0, init=False)
    num_prefix_hits: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.tails = Tails(self.residency, self.write_behind)

    def look_up(self, turn: Turn, now_ns: int) -> list[Effect]:
        """Acquire what is resident of the turn's prefix, and ask the kvstore for what follows."""
        turn.state = TurnState.WAITING
        prefix = turn.cache.prefix
        self.acquire_resident(turn)
        turn.cache.found = {"pool": len(prefix.blocks)}
        self.num_prefix_queries += max(len(prefix.keys), turn.num_reusable_blocks)
        if turn.cache.is_private or not self.write_behind.is_connected:
            return []
        patience_ns = self._patience_ns(len(prefix.missing))
        return self._ask(turn, now_ns + patience_ns, patience_ns)

    def _ask(self, turn: Turn, due_at_ns: int, patience_ns: int) -> list[Effect]:
        prefix = turn.cache.prefix
        if not (keys := self.residency.ask(prefix, due_at_ns)):
            return []
        num_before = len(prefix.keys) - len(keys)
        return [
            StageTurn(
                turn_id=turn.request.turn_id,
                attempt=turn.request.attempt,
                keys=keys,
                request_id=turn.request.request_id,
                kv_at=turn.request.kv_at,
                num_before=num_before,
                patience_ns=patience_ns,
                tenant=turn.request.tenant,
                session_id=turn.request.session_id,
                trace=turn.trace.context,
            )
        ]

    def on_staged(self, turn: Turn, staged: Staged | None, num_decodes: int) -> list[Effect]:
        """The kvstore's answer to what `look_up` asked; None if it could not be asked.

        Args:
            num_decodes: turns beside which it would be computed.
        """
        prefix = turn.cache.prefix
        if staged is not None and prefix.is_asked and self.tails.is_all_but(turn, staged.keys):
            prefix.keys = turn.reusable_keys()
            again = self._ask(turn, prefix.answer_due_at_ns, self.limits.stage_timeout_min_ns)
            return [ReleaseTicket(staged.ticket), *again]
        if staged is None or not staged.num_blocks:
            return self.residency.stage(prefix, staged)
        turn.cache.found["host"] = staged.num_here
        if staged.coming_from is not None:
            turn.cache.found[staged.coming_from] = staged.num_blocks - staged.num_here
        all_keys = staged.keys

        def compute_ns(num_blocks: int) -> float:
            last = all_keys[num_blocks - 1] if num_blocks else NO_KEY
            num_known = turn.tokens_up_to(prefix.staged_from + num_blocks, last)
            return self._compute_ns(len(turn.tokens) - num_known, num_decodes)

        num_wanted, supply = staged.num_blocks, self._supply(staged)
        if self.costs.is_known or self.estimates.prefill_tokens_per_s:
            num_wanted = blocks_to_fetch(supply, compute_ns)
        elif max(staged.ready_in_ns, default=0) > PROMISE_UNKNOWN_NS:
            num_wanted = staged.num_here
        if num_wanted < staged.num_blocks and (all_ns := supply.ready_ns(staged.num_blocks)):
            share = supply.ready_ns(num_wanted) / all_ns  # what is not wanted is not read either
            sooner_ns = [int(share * promised_ns) for promised_ns in staged.ready_in_ns]
            staged = replace(staged, ready_in_ns=sooner_ns)
        return self.residency.stage(prefix, staged, num_wanted)

    @property
    def load_block_ns(self) -> float:
        """What one block, all its layers, takes from the arena to the pool."""
        return self.estimates.load_ns(self.residency.pool.num_layers * self.page_bytes)

    def _supply(self, staged: Staged) -> Supply:
        num_pages = staged.num_blocks * self.residency.pool.num_layers
        source_ns = self.estimates.source_ns(staged.num_from_disk * self.page_bytes)
        promised_ns = max(staged.ready_in_ns, default=0)
        return Supply(
            num_blocks=staged.num_blocks,
            num_here=staged.num_here,
            wait_ns=max(promised_ns - source_ns, 0),
            source_ns=source_ns,
            link_ns=self.estimates.load_ns(num_pages * self.page_bytes),
        )

    def _compute_ns(self, num_tokens: int, num_decodes: int) -> float:
        """What computing so many prompt tokens takes; 0 while that is unknown."""
        if self.costs.is_known:
            return self.costs.prefill_ns(num_tokens, num_decodes, self.limits.prefill_tokens_max)
        speed = self.estimates.prefill_tokens_per_s
        return num_tokens * 1e9 / speed if speed else 0.0

    def acquire_resident(self, turn: Turn) -> None:
        """Extend the turn's blocks by those whose every layer is here or loading."""
        self.tails.want(turn)
        turn.on_prefix()

    def num_pages_wanted(self, turn: Turn) -> int:
        """Pages the turn still needs for all its tokens and the one it will make."""
        num_blocks = len(turn.tokens) // self.block_tokens + 1
        return (num_blocks - turn.cache.num_blocks) * self.residency.pool.num_layers

    def load_staged(self, turn: Turn) -> list[Effect]:
        """Extend the turn's blocks by those that are staged. What there are no pages for is
        computed."""
        effects = self.residency.load(turn.cache.prefix)
        turn.on_prefix()
        return effects

    def arrivals(self, turn: Turn, now_ns: int) -> list[int]:
        """For each layer, when the last of the turn's history will probably be here; 0 where all
        is."""
        page_ns = self.estimates.load_ns(self.page_bytes)
        return self.residency.arrivals(turn.cache.prefix, page_ns, now_ns)

    def trust(self, turn: Turn, now_ns: int, num_decodes: int) -> None:
        """Decide how long to wait for what is loading: until it is overdue by as much as
        computing it takes. So a promise that is not kept costs about that much again.
        """
        prefix = turn.cache.prefix
        coming = [number for number, block in enumerate(prefix.blocks) if block.loading]
        if not coming:
            prefix.give_up_at_ns = 0
            return
        num_tokens = (len(prefix.blocks) - coming[0]) * self.block_tokens
        compute_ns = self._compute_ns(num_tokens, num_decodes) or COMPUTE_UNKNOWN_NS
        promised_ns = max(self.arrivals(turn, now_ns))
        prefix.give_up_at_ns = promised_ns + max(int(compute_ns), PATIENCE_MIN_NS)
        prefix.num_lacking = sum(block.loading for block in prefix.blocks)

    def is_overdue(self, turn: Turn, now_ns: int, num_decodes: int) -> bool:
        """Whether to compute what is loading rather than to wait on. Others that came later may
        have gone before it, layer by layer: while it comes at all, the wait is extended, as of when
        something came last, so that what stops in the middle is waited for no longer than what
        never begins."""
        prefix = turn.cache.prefix
        if not 0 < prefix.give_up_at_ns <= now_ns:
            return False
        num_lacking = sum(block.loading for block in prefix.coming)
        if num_lacking < prefix.num_lacking:
            self.trust(turn, min(self.landed_at_ns, now_ns), num_decodes)
            return 0 < prefix.give_up_at_ns <= now_ns
        return num_lacking > 0

    def has_news(self, turn: Turn) -> bool:
        """Whether a turn may have computed what is to be registered, as after few of its steps."""
        num_full = turn.num_computed // turn.cache.block_tokens
        return num_full > len(turn.cache.prefix.blocks) or turn.cache.tail is not None

    def register(self, turn: Turn) -> list[Block]:
        """Full blocks just computed enter the cache, so that others may run on them.

        Returns:
            Blocks for which twins in the cache stand in: the pool's, once no step in flight reads
            them any more.
        """
        retired: list[Block] = []
        if turn.cache.is_private or not self.tails.own(turn):
            return retired
        pool = self.residency.pool
        for index in range(
            len(turn.cache.prefix.blocks), turn.num_computed // turn.cache.block_tokens
        ):
            key, block = turn.cache.key(index), turn.cache.own[0]
            twin = self._twin(key)
            if twin is None:
                self._publish(turn, index, key, turn.cache.block(index))
            elif twin.loading or not pool.is_whole(twin):
                break  # a block that cannot stand in has the key: this one stays the turn's
            else:
                pool.acquire(twin)
                turn.cache.share(twin)
                retired.append(block)
        return retired

    def keep_tail(self, turn: Turn, num_tokens: int) -> None:
        """A turn is over, and its session may go on from its first `num_tokens` tokens, as the
        session's record says: what they fill of the last, partial block can be found from now on,
        and goes below.
        """
        index, num_more = divmod(num_tokens, self.block_tokens)
        if turn.cache.is_private or turn.is_void or turn.request.session_id is None:
            return
        if not num_more or num_tokens > turn.num_computed or not self.tails.own(turn):
            return
        before = turn.cache.prefix.blocks[-1:]
        if index == len(turn.cache.prefix.blocks) and not any(
            block.is_forgotten for block in before
        ):
            tokens = turn.tokens[num_tokens - num_more : num_tokens]
            key = child_key(turn.cache.parent_key(index), tokens)
            if self._twin(key) is None:
                self._publish(turn, index, key, tokens)

    def _twin(self, key: BlockKey) -> Block | None:
        """The block that can be found under a key, but for a remnant, or one that no turn runs on
        any more, however long its loads go on: a whole one is to take its place."""
        pool = self.residency.pool
        twin = pool.blocks.get(key)
        if twin is not None and twin.lost:
            self.write_behind.forget([twin])
            self.residency.forget([twin])
            return None
        if twin is not None and not (pool.is_whole(twin) or twin.refs or twin.loading):
            pool.drop(twin)
            return None
        return twin

    def _publish(self, turn: Turn, index: int, key: BlockKey, tokens: list[int]) -> None:
        """The turn's first own block, with the KV of these tokens, can be found under `key`."""
        block = turn.cache.own[0]
        self.residency.pool.publish(block, key, turn.request.owner)
        block.expiry_s = turn.request.expiry_s
        turn.cache.share(block)
        self._write(turn, index, tokens)

    def lose(self, turn: Turn) -> None:
        """A turn cannot be computed: what it alone ran on may be the reason, so no other turn may
        run on that. What others run on as well is good enough for them.
        """
        for block in turn.cache.prefix.blocks:
            if block.refs == 1:
                block.lost = True

    def release(self, turn: Turn) -> list[Effect]:
        """A turn lets go of all its pages and of its stage."""
        self._note_use(turn)
        self.residency.pool.give_back(turn.cache.own)
        effects = self.residency.release(turn.cache.prefix)
        turn.on_released()
        return effects

    def take_used(self) -> list[BlockKey]:
        """Last blocks of what turns ran on since this was asked last, the latest last. Who has them
        below does not see such use otherwise."""
        used, self._used = list(self._used), {}
        return used

    def _note_use(self, turn: Turn) -> None:
        """The last of a turn's blocks that has a copy below stands for all before it."""
        if turn.cache.is_private:
            return
        for block in reversed(turn.cache.prefix.blocks):
            if block.is_safe:
                self._used.pop(block.key, None)
                self._used[block.key] = None
                break
        if len(self._used) > USED_MAX:
            del self._used[next(iter(self._used))]

    def _write(self, turn: Turn, index: int, tokens: list[int]) -> None:
        """A new block is to be copied below, and so are those right before it whose copies were
        given up: it would be of no use without. One that begins with the tail of the turn's history
        takes the place of that."""
        write_behind, blocks, first = self.write_behind, turn.cache.prefix.blocks, index
        while first and write_behind.has_room and write_behind.can_try_again(blocks[first - 1]):
            first -= 1
        for number in range(first, index + 1):
            block, before = blocks[number], blocks[number - 1] if number else None
            parent = turn.cache.parent_key(number)
            replaces = (
                turn.cache.tail_key()
                if turn.has_tail and number == turn.cache.tail_index
                else NO_KEY
            )
            if replaces == block.key:  # it made no more of it
                replaces = NO_KEY
            if number < index:
                write_behind.try_again(block, before, parent, turn.cache.block(number), replaces)
                continue
            is_partial = len(tokens) < self.block_tokens
            write_behind.on_computed(block, before, parent, tokens, replaces, is_partial=is_partial)

    def _patience_ns(self, num_blocks: int) -> int:
        """How long the kvstore's answer is worth waiting for: half of what computing would take."""
        limits, speed = self.limits, self.estimates.prefill_tokens_per_s
        if speed == 0.0:
            return limits.stage_timeout_max_ns
        worth_ns = int(0.5e9 * num_blocks * self.block_tokens / speed)
        return min(max(worth_ns, limits.stage_timeout_min_ns), limits.stage_timeout_max_ns)
