"""A pool and the tiers below it, each of some sessions: what turns find in total is no less than
what the largest of them gives alone under the same policy, and than that by last use.

An engine's core and a kvstore's: every load, copy and write is done before the next turn.
"""

from functools import cache
from itertools import permutations

import pytest

from services.kvstore.core import Commit, NewBlock, Stage
from services.worker.core.effects import (
    BlockWrite,
    CommitBlocks,
    Effect,
    LeasePages,
    LoadPages,
    ReleaseTicket,
    ReturnPages,
    StageTurn,
    StoreBlocks,
    TrimTicket,
)
from services.worker.core.kv.staged import Staged
from shared.wire.messages import SamplingParams
from tests.unit.kvstore.core.host import LAYERS, PAGE_BYTES, WORKERS
from tests.unit.kvstore.core.test_tier_sizes import NUM_BLOCKS, ROOM, Tiers
from tests.unit.kvstore.core.test_tier_totals import (
    LEAST,
    NUM_SESSIONS,
    NUM_TURNS,
    found_alone,
    found_by_use,
    turns,
)
from tests.unit.worker.driver import BLOCK_TOKENS, MS, Engine, deltas, new_core, new_turn

TAIL = 1  # blocks of a running turn that are not full
STOCK = 2 * NUM_BLOCKS  # blocks of the arena that a worker has leased and not used yet
TRIES_MAX = 1000


class Deployment:
    """One worker above one kvstore, with room for so many sessions in each tier; nothing below the
    pool if the arena has none."""

    def __init__(self, pool: int, arena: int, disk: int) -> None:
        num_blocks = pool * ROOM + TAIL
        self.engine = Engine(new_core(num_blocks, eviction="predicted", lease_target_blocks=1))
        self.tiers = Tiers(arena * ROOM + STOCK, disk * ROOM, eviction="predicted")
        self.num_leases = self.num_turns = self.num_seen = 0
        if arena:
            self.engine.core.on_kv_connected(1)

    def turn(self, session: int, num_blocks: int, pause_ns: int) -> int:
        """Blocks that it does not compute."""
        engine = self.engine
        engine.now_ns += pause_ns
        self.num_turns += 1
        tokens = [session + 1] * (num_blocks * BLOCK_TOKENS) + [NUM_SESSIONS + 1]
        turn = new_turn(str(self.num_turns), tokens, sampling=SamplingParams(max_tokens=1))
        before = len(engine.effects)
        engine.submit(turn)
        for _ in range(TRIES_MAX):
            self._perform()
            if not (engine.core.turns or engine.core.has_unwritten):
                break
            if (plan := engine.plan()) is not None:
                engine.finish(plan)
            engine.now_ns += MS
        else:
            raise AssertionError("a turn did not end")
        used = engine.core.take_used()
        gone = self.tiers.renew([], [], used=used, last_lease=self.num_leases)
        engine.core.pool.on_copies_gone(gone)
        self._settle()
        return sum(delta.cached_tokens or 0 for delta in deltas(engine.effects[before:])) // (
            BLOCK_TOKENS
        )

    def _perform(self) -> None:
        """What the engine asked for, and what it asks for then."""
        while self.num_seen < len(self.engine.effects):
            effect = self.engine.effects[self.num_seen]
            self.num_seen += 1
            self._answer(effect)

    def _answer(self, effect: Effect) -> None:
        core, engine = self.engine.core, self.engine
        match effect:
            case StageTurn():
                staged = self._stage(effect)
                engine.keep(core.on_staged(effect.turn_id, effect.attempt, staged, engine.now_ns))
            case LoadPages():
                engine.load_all([effect])
            case LeasePages(num_pages):
                self.num_leases += 1
                core.on_leased(self.tiers.lease(num_pages, number=self.num_leases))
            case StoreBlocks():
                engine.store_all()
            case CommitBlocks(writes):
                self._commit(writes)
                core.on_committed([write.key for write in writes])
            case ReturnPages(pages):
                self.tiers.release(pages=pages, last_lease=self.num_leases)
            case ReleaseTicket(ticket):
                self.tiers.release(ticket, last_lease=self.num_leases)
            case TrimTicket(ticket, num_kept):
                self.tiers.release(ticket, num_kept=num_kept, last_lease=self.num_leases)
        self._settle()

    def _stage(self, effect: StageTurn) -> Staged:
        tiers, keys = self.tiers, effect.keys
        incarnation = tiers.incarnations[WORKERS[0]]
        event = Stage(
            WORKERS[0], incarnation, LAYERS, PAGE_BYTES, keys, num_before=effect.num_before
        )
        pinned, effects = tiers.core.on_stage(event, tiers.now_ns)
        tiers.perform(effects)
        num = pinned.num_blocks
        pages, generations = (
            [each[layer * num : (layer + 1) * num] for layer in range(LAYERS)]
            for each in (pinned.pages, pinned.generations)
        )
        return Staged(pinned.ticket, keys[:num], pages, generations, epoch=1)

    def _commit(self, writes: list[BlockWrite]) -> None:
        blocks = [
            NewBlock(
                key=write.key, parent=write.parent, tokens=write.tokens, pages=write.arena_pages,
                checksums=[0] * LAYERS, owner=write.owner,
            )
            for write in writes
        ]  # fmt: skip
        tiers = self.tiers
        incarnation = tiers.incarnations[WORKERS[0]]
        event = Commit(WORKERS[0], incarnation, "f", PAGE_BYTES, blocks, last_lease=self.num_leases)
        _, effects = tiers.core.on_commit(event, tiers.now_ns)
        tiers.perform(effects)

    def _settle(self) -> None:
        self.tiers.pass_time(self.engine.now_ns - self.tiers.now_ns)
        self.tiers.settle()


def found_by(deployment: Deployment, name: str) -> int:
    return sum(deployment.turn(*each) for each in turns(name))


@cache
def found_in(sizes: tuple[int, int, int], name: str) -> int:
    return found_by(Deployment(*sizes), name)


ACCESS = ["cyclic", "random", "zipf", "growing"]
SIZES = [*permutations((2, 3, 4)), (4, 4, 2), (4, 1, 1), (4, 2, 0), (4, 0, 0)]


@pytest.mark.parametrize("name", ACCESS)
@pytest.mark.parametrize("sizes", SIZES)
def test_pool_and_tiers_find_as_much_as_the_largest_alone(
    sizes: tuple[int, int, int], name: str
) -> None:
    size = max(sizes)
    alone = found_in((size, 0, 0), name) if size == sizes[0] else found_alone(size * ROOM, name)
    num_found = found_in(sizes, name)
    assert num_found >= LEAST * alone
    assert num_found >= LEAST * found_by_use(size * ROOM, name)


@pytest.mark.parametrize(
    ("pool", "arena", "disk"), [(10, 0, 0), (10, 5, 5), (5, 10, 1), (5, 5, 10)]
)
def test_a_pass_over_more_than_the_largest_holds_finds_most_of_it(
    pool: int, arena: int, disk: int
) -> None:
    num_found = found_by(Deployment(pool, arena, disk), "cyclic")
    assert num_found > NUM_TURNS * NUM_BLOCKS * 10 / NUM_SESSIONS / 2
