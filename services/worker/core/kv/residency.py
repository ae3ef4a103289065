"""What must be on the device, for any user.

A user needs a `Chain`: blocks under keys of which each names all before it, one page a layer. The
first user is a turn, whose chain is the KV of its prefix. Whatever else is cut into such blocks and
found under such keys fits as well, in pages of the same pool. The verbs stand in the order in which
a chain meets them: `want` what is here, `ask` the kvstore for the rest and `stage` its answer,
`load` that, gate each layer by what is `awaited` and `settle` what has come, use it, `release` it.
What is not in use stays until its pages are needed: eviction is the pool's (`num_available`).

What is worth it, what is asked again and what becomes of a user whose chain did not come are the
user's to decide, and the question that goes to the kvstore is an effect of the user's own.
"""

from dataclasses import dataclass, field

from services.worker.core.effects import Effect, ReleaseTicket, TrimTicket
from services.worker.core.kv.pages import Block, PagePool
from services.worker.core.kv.staged import Staged
from services.worker.core.kv.staging import Stager
from shared.blocks import BlockKey
from shared.owners import OwnerKey


@dataclass(slots=True, eq=False)
class Chain:
    """Blocks that one user needs on the device. Users of the same keys have a chain each.

    Attributes:
        owner: for whom blocks are loaded, as blocks name it.
        keys: what is needed, in order; its user sets them before `want`.
        is_indivisible: a part is of no use: nothing is loaded unless all can be.
        blocks: what it holds, in order. A user that makes blocks itself adds those that others can
            find.
        coming: those of them that were loading when it got them, as far as that is not
            known to be over.
        may_ask: whether the kvstore may be asked for it.
        is_asked: the kvstore's answer is out.
        answer_due_at_ns: how long that is waited for.
        staged: the kvstore's answer, pinned until the loads from it are under way.
        staged_from: the block that was the first of those asked for last.
        give_up_at_ns: when its user takes other ways than to wait for what is loading; 0: not
            decided.
        num_lacking: pages that were loading when that was decided.
        has_arrived: since it was last released, it was wanted.
    """

    owner: OwnerKey
    keys: list[BlockKey] = field(default_factory=list)
    is_indivisible: bool = False
    blocks: list[Block] = field(default_factory=list)
    coming: list[Block] = field(default_factory=list)
    may_ask: bool = True
    is_asked: bool = False
    answer_due_at_ns: int = 0
    staged: Staged | None = None
    staged_from: int = 0
    give_up_at_ns: int = 0
    num_lacking: int = 0
    has_arrived: bool = False

    @property
    def missing(self) -> list[BlockKey]:
        """What it needs and does not hold."""
        return self.keys[len(self.blocks) :]

    @property
    def num_in_sight(self) -> int:
        """Its leading blocks up to the end of what is staged; 0 if nothing is."""
        return 0 if self.staged is None else self.staged_from + self.staged.num_blocks

    def on_time(self, now_ns: int) -> None:
        """Wait no longer for an answer that is overdue; should it come, it is let go."""
        self.is_asked &= now_ns < self.answer_due_at_ns


@dataclass(slots=True)
class Residency:
    """The pool, what is loading into it, and which user may rely on what of that."""

    pool: PagePool
    stager: Stager = field(init=False)

    def __post_init__(self) -> None:
        self.stager = Stager(self.pool)

    # Want.

    def want(self, chain: Chain) -> None:
        """Hold what is here of the chain, as far as it has no gap.

        From now on those blocks keep all their pages. Some may still be loading:
        that are those in `coming`.
        """
        pool = self.pool
        for key in chain.missing:
            block = pool.blocks.get(key)
            if block is None or block.lost or not pool.is_whole(block):
                break
            pool.acquire(block)
            _hold(chain, block)
        if chain.keys and not chain.has_arrived:
            chain.has_arrived = True
            pool.arrive(chain.keys, len(chain.blocks))

    # Stage.

    def ask(self, chain: Chain, answer_due_at_ns: int) -> list[BlockKey]:
        """The question for the kvstore: what to stage for the chain, nothing if it must not be
        asked. The answer goes to `stage`.
        """
        keys = chain.missing if chain.may_ask else []
        chain.is_asked = bool(keys)
        if keys:
            chain.staged_from = len(chain.blocks)
            chain.answer_due_at_ns = answer_due_at_ns
        return keys

    def stage(
        self, chain: Chain, staged: Staged | None, num_wanted: int | None = None
    ) -> list[Effect]:
        """The kvstore's answer; None if it could not be asked.

        Args:
            num_wanted: of these blocks, as many of the first as the user wants loaded rather
                than make them itself; None: all.

        It stays pinned if it is of use, until `load` or `release`. One that is not awaited any
        more is released, and so is one to an earlier question of this chain: the answer to the last
        one is still to come then.
        """
        if not chain.is_asked:
            return [] if staged is None else [ReleaseTicket(staged.ticket)]
        if staged is None:
            chain.is_asked = False
            return []
        if staged.keys and staged.keys[0] != chain.keys[chain.staged_from]:
            return [ReleaseTicket(staged.ticket)]
        chain.is_asked = False
        wanted = staged if num_wanted is None else staged.head(num_wanted)
        is_short = chain.staged_from + wanted.num_blocks < len(chain.keys)
        if not wanted.keys or (chain.is_indivisible and is_short):
            return [ReleaseTicket(staged.ticket)]
        chain.staged = wanted
        self.stager.hold(staged.ticket)
        return [] if wanted is staged else [TrimTicket(staged.ticket, wanted.num_blocks)]

    def unstage(self, chain: Chain) -> list[Effect]:
        """The kvstore's answer is of no use, whether it has come or not."""
        chain.is_asked = False
        staged, chain.staged = chain.staged, None
        return [] if staged is None else self.stager.let_go(staged.ticket)

    # Load, and gate by layer.

    def load(self, chain: Chain) -> list[Effect]:
        """Hold the staged blocks that continue what the chain holds, with a load for each page they
        lack, and let the stage go. Call `want` just before.

        A missing block takes at most a page a layer. Where pages run out it stops, or, if the chain
        is indivisible, does not begin; see `missing` then. What stood before the stage may
        have been let go since, to make room; then it is no use.
        """
        staged, chain.staged = chain.staged, None
        if staged is None:
            return []
        first = len(chain.blocks) - chain.staged_from
        keys = staged.keys[first:] if first >= 0 else []
        if chain.is_indivisible and not (keys == chain.missing and self._has_room(keys)):
            keys = []
        filled: list[tuple[Block, list[int]]] = []
        for key in keys:
            block = self._acquire_for_load(key, chain.owner)
            if block is None:
                break
            filled.append((block, self.pool.fill(block)))
        effects = self.stager.load(filled, staged, first) if filled else []
        for block, _ in filled:
            _hold(chain, block)
        return effects + self.stager.let_go(staged.ticket)

    def fill(self, chain: Chain) -> list[tuple[Block, list[int]]]:
        """Hold all blocks that the chain lacks, with pages for bytes that its user makes and puts
        there itself, as a load would: they count as loading from now on.

        Returns:
            Each block with the layers that it had lacked; nothing if there is no room for all.
        """
        if not self._has_room(chain.missing):
            return []
        filled: list[tuple[Block, list[int]]] = []
        for key in chain.missing:
            block = self._acquire_for_load(key, chain.owner)
            assert block is not None, "counted as available"
            filled.append((block, self.pool.fill(block)))
        self.stager.make(filled)
        for block, _ in filled:
            _hold(chain, block)
        return filled

    def awaited(self, chain: Chain) -> list[list[int]]:
        """The pool pages that a pass has to wait for before it uses the chain, for each layer;
        empty if everything is here. A layer's pages can be waited for on their own."""
        return self.stager.loading_pages(chain.coming) if chain.coming else []

    def settle(self, chain: Chain) -> bool:
        """Forget what has come; False if some of the chain will not come. Then it has to be
        released and wanted again: without `give_up` the same bytes may be asked for once more."""
        if any(block.lost for block in chain.coming):
            return False
        chain.coming = [block for block in chain.coming if block.loading]
        return True

    def give_up(self, chain: Chain) -> None:
        """What has not come by now comes too late for this user, and for others that wait. The
        kvstore is not asked again for this chain, unless its user allows it (`may_ask`)."""
        for block in chain.coming:
            if block.loading:
                block.lost = True
        chain.may_ask = False

    def put_off(self, chain: Chain) -> None:
        """What has not come by now comes too late for a pass, but is still wanted: see `is_late`.
        Users of these blocks wait for them outside of passes."""
        for block in chain.coming:
            block.is_late = block.loading > 0

    def arrivals(self, chain: Chain, page_ns: float, now_ns: int) -> list[int]:
        """For each layer, when the last loading page of the chain will probably be here; 0
        where nothing is.

        Args:
            page_ns: of a load from the arena.
        """
        return self.stager.arrivals(chain.coming, page_ns, now_ns)

    def is_late(self, chain: Chain) -> bool:
        """Whether a pass must not wait for loading pages of the chain."""
        return any(block.is_late for block in chain.coming)

    # Use is holding blocks. Release, and what is evicted then.

    def release(self, chain: Chain) -> list[Effect]:
        """Let go of the stage and of all blocks. Those without another holder, and of which there
        is a copy below, may be taken from now on, but stay until their pages are needed: the next
        user of the chain finds them. No step in flight may read them any more. A request in flight
        stays in flight.
        """
        effects: list[Effect] = []
        if chain.staged is not None:
            effects = self.stager.let_go(chain.staged.ticket)
            chain.staged = None
        blocks, chain.blocks, chain.coming = chain.blocks, [], []
        chain.give_up_at_ns, chain.has_arrived = 0, False
        if blocks:
            self.pool.leave(blocks)
        self.pool.release(blocks)
        return effects

    @property
    def num_available(self) -> int:
        """Pages that a user could get now: free ones, and behind them those of idle blocks, which
        are taken in the order of `shared.eviction`. A page of a block that is held, that has
        no copy below or that is loading is never taken.
        """
        return self.pool.num_available

    def has_all(self, keys: list[BlockKey]) -> bool:
        """Whether all these blocks are here, or loading."""
        blocks = map(self.pool.blocks.get, keys)
        return all(block is not None and self.pool.is_whole(block) for block in blocks)

    def forget(self, blocks: list[Block]) -> None:
        """These cannot be found any more. Each is freed with its last user."""
        for block in blocks:
            self.pool.forget(block)

    def _has_room(self, keys: list[BlockKey]) -> bool:
        """Whether all these blocks could be loaded together."""
        num_layers, num_pages = self.pool.num_layers, 0
        for key in keys:
            block = self.pool.blocks.get(key)
            if block is not None and block.lost:
                return False
            # The pages of an idle block are counted as takeable until it is held.
            is_held = block is not None and not block.group
            num_pages += num_layers - (block.num_present if block is not None and is_held else 0)
        return num_pages <= self.num_available

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


def _hold(chain: Chain, block: Block) -> None:
    chain.blocks.append(block)
    if block.loading:
        chain.coming.append(block)
