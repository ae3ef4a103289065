"""A turn's history: what of its prefix is here, what comes up, what others find once it is there.

Owns the pool and all that brings KV into it and copies KV out of it.
"""

from dataclasses import dataclass, field

from services.worker.core.effects import Effect, ReleaseTicket, StageTurn
from services.worker.core.limits import EngineLimits, Estimates
from services.worker.core.pages import Block, PagePool
from services.worker.core.staged import Staged
from services.worker.core.staging import Stager
from services.worker.core.turn import Turn, TurnState
from services.worker.core.writeback import WriteBehind
from shared.blocks import BlockKey
from shared.owners import OwnerKey

USED_MAX = 256  # sequences whose use is told at once; of more, the latest


@dataclass(slots=True)
class History:
    """Attributes:
    page_bytes: of one pool page, for the fetch-or-recompute decision.
    num_prefix_queries, num_prefix_hits: reusable blocks that turns came with, and those of them
        that did not have to be computed.
    """

    pool: PagePool
    stager: Stager
    writeback: WriteBehind
    estimates: Estimates
    limits: EngineLimits
    page_bytes: int
    block_tokens: int
    _used: dict[BlockKey, None] = field(default_factory=dict, init=False)
    num_prefix_queries: int = field(default=0, init=False)
    num_prefix_hits: int = field(default=0, init=False)

    def look_up(self, turn: Turn, now_ns: int) -> list[Effect]:
        """Acquire what is resident of the turn's prefix, and ask the kvstore for what follows."""
        turn.state = TurnState.WAITING
        num_reusable = turn.num_reusable_blocks
        self.num_prefix_queries += num_reusable
        self.acquire_resident(turn)
        if turn.is_private or not (turn.may_stage and self.writeback.is_connected):
            return []
        keys = [turn.key(index) for index in range(turn.num_shared, num_reusable)]
        if not keys:
            return []
        turn.state = TurnState.STAGING
        turn.staged_from = turn.num_shared
        turn.stage_deadline_ns = now_ns + self._patience_ns(len(keys))
        return [StageTurn(turn.turn_id, turn.attempt, keys, turn.request_id)]

    def on_staged(self, turn: Turn, staged: Staged | None) -> list[Effect]:
        """The kvstore's answer to what `look_up` asked; None if it could not be asked."""
        turn.state = TurnState.WAITING
        if staged is None:
            return []
        is_worth_it = staged.num_blocks > 0 and self.estimates.is_fetch_worthwhile(
            staged.num_blocks * self.block_tokens,
            staged.num_blocks * self.pool.num_layers * self.page_bytes,
            staged.num_from_disk * self.page_bytes,
        )
        if not is_worth_it:
            return [ReleaseTicket(staged.ticket)]
        turn.staged = staged
        self.stager.hold(staged.ticket)
        return []

    def acquire_resident(self, turn: Turn) -> None:
        """Extend the turn's blocks by those whose every layer is here or on its way."""
        for index in range(turn.num_shared, turn.num_reusable_blocks):
            block = self.pool.blocks.get(turn.key(index))
            if block is None or block.lost or not self.pool.is_whole(block):
                return
            self.pool.acquire(block)
            turn.adopt(block)

    def num_pages_wanted(self, turn: Turn) -> int:
        """Pages the turn still needs for all its tokens and the one it will make."""
        num_blocks = len(turn.tokens) // self.block_tokens + 1
        return (num_blocks - len(turn.blocks)) * self.pool.num_layers

    def load_staged(self, turn: Turn) -> list[Effect]:
        """Adopt the staged blocks that continue what is resident, with a load for each page they
        lack, and let the stage go. Stops early when pages run out: the rest is computed.

        What stood before `staged_from` may have been let go since, to make room; then it is no use.
        """
        staged, turn.staged = turn.staged, None
        if staged is None:
            return []
        first = turn.num_shared - turn.staged_from
        filled: list[tuple[Block, list[int]]] = []
        for key in staged.keys[first:] if first >= 0 else ():
            block = self._acquire_for_load(key, turn.owner)
            if block is None:
                break
            filled.append((block, self.pool.fill(block)))
        effects = self.stager.load(filled, staged, first) if filled else []
        for block, _ in filled:
            turn.adopt(block)
        return effects + self.stager.let_go(staged.ticket)

    def settle_coming(self, turn: Turn) -> bool:
        """Forget what has come of a turn's history; False if some of it will not come."""
        if any(block.lost for block in turn.coming):
            return False
        turn.coming = [block for block in turn.coming if block.loading]
        return True

    def give_up_coming(self, turn: Turn) -> None:
        """What has not come by now comes too late for this turn, and for whoever else waits."""
        for block in turn.coming:
            if block.loading:
                block.lost = True
        turn.may_stage = False
        turn.num_cached = 0

    def register(self, turn: Turn) -> list[Block]:
        """Full blocks just computed enter the cache, so that others may run on them.

        Returns:
            Blocks for which twins in the cache stand in: the pool's, once no step in flight reads
            them any more.
        """
        retired: list[Block] = []
        if turn.is_private:
            return retired
        pool = self.pool
        for index in range(turn.num_shared, turn.num_computed // turn.block_tokens):
            key, block = turn.key(index), turn.blocks[index]
            twin = pool.blocks.get(key)
            if twin is not None and not (pool.is_whole(twin) or twin.refs or twin.loading):
                pool.drop(twin)  # a remnant: the whole block takes its place
                twin = None
            if twin is None:
                pool.publish(block, key, turn.owner)
                turn.share(block)
                self._write(turn, index)
            elif twin.lost or twin.loading or not pool.is_whole(twin):
                break  # a block that cannot stand in has the key: this one stays the turn's
            else:
                pool.acquire(twin)
                turn.share(twin)
                retired.append(block)
        return retired

    def lose(self, turn: Turn) -> None:
        """A turn cannot be computed: what it alone ran on may be the reason, so nobody is to run on
        that. What others run on as well is good enough for them.
        """
        for block in turn.blocks[: turn.num_shared]:
            if block.refs == 1:
                block.lost = True

    def release(self, turn: Turn) -> list[Effect]:
        """A turn lets go of all its pages and of its stage."""
        effects: list[Effect] = []
        if turn.staged is not None:
            effects += self.stager.let_go(turn.staged.ticket)
            turn.staged = None
        self._note_use(turn)
        shared, own = turn.drop_blocks()
        self.pool.give_back(own)
        self.pool.release(shared)
        return effects

    def take_used(self) -> list[BlockKey]:
        """Last blocks of what turns ran on since this was asked last, the latest last. Who has them
        below does not see such use otherwise."""
        used, self._used = list(self._used), {}
        return used

    def _note_use(self, turn: Turn) -> None:
        """The last of a turn's blocks that has a copy below stands for all before it."""
        if turn.is_private:
            return
        for block in reversed(turn.blocks[: turn.num_shared]):
            if block.is_safe:
                self._used.pop(block.key, None)
                self._used[block.key] = None
                break
        if len(self._used) > USED_MAX:
            del self._used[next(iter(self._used))]

    def _write(self, turn: Turn, index: int) -> None:
        """A new block is to be copied below, and so are those right before it whose copies were
        given up: it would be of no use without."""
        writeback, first = self.writeback, index
        while first and writeback.can_try_again(turn.blocks[first - 1]):
            first -= 1
        for number in range(first, index + 1):
            write = writeback.on_computed if number == index else writeback.try_again
            before = turn.blocks[number - 1] if number else None
            write(turn.blocks[number], before, turn.parent_key(number), turn.block(number))

    def _patience_ns(self, num_blocks: int) -> int:
        """How long the kvstore's answer is worth waiting for: half of what computing would take."""
        limits, speed = self.limits, self.estimates.prefill_tokens_per_s
        if speed == 0.0:
            return limits.stage_timeout_max_ns
        worth_ns = int(0.5e9 * num_blocks * self.block_tokens / speed)
        return min(max(worth_ns, limits.stage_timeout_min_ns), limits.stage_timeout_max_ns)

    def _acquire_for_load(self, key: BlockKey, owner: OwnerKey) -> Block | None:
        """The block under `key`, acquired, if there are pages for the layers it lacks."""
        pool = self.pool
        block = pool.blocks.get(key)
        if block is None:
            if pool.num_available < pool.num_layers:
                return None
            block = pool.enter(key, owner)
            pool.acquire(block)
            return block
        if block.lost:
            return None
        pool.acquire(block)
        if pool.num_available < pool.num_layers - block.num_present:
            pool.release([block])
            return None
        return block
