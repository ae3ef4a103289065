"""Each tier holds what it has room for: what turns find of their history is never less than what
the largest tier would give them if it were the only one.

A tier alone is modelled as a list of blocks by their last use. Arena, disk and object store are the
core's own, and every copy, write and save that it asks for is done before the next turn.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from itertools import chain
from random import Random

import pytest

from services.kvstore.core import (
    DropRuns,
    Effect,
    Limits,
    RemotePrefix,
    Run,
    SaveOutcome,
    SaveRun,
    WriteOutcome,
)
from shared.blocks import BlockKey
from shared.eviction import EvictionName
from shared.ids import SessionId, TenantId
from shared.locations import OBJECTS
from shared.owners import OwnerKey, owner_key
from tests.unit.kvstore.core.host import BLOCK_BYTES, LAYERS, Host, key_of

NUM_BLOCKS = 4  # of each session
NUM_SESSIONS = 8
NUM_TURNS = 40
BIG = 1 << 60
STEP_NS = 10


def owner_of(session: int) -> OwnerKey:
    return owner_key(TenantId("t"), SessionId(str(session)))


class Alone:
    """Blocks by last use; for room the least recently used goes, of a session its last first."""

    def __init__(self, num_blocks_max: int) -> None:
        self._num_max = num_blocks_max
        self._blocks: OrderedDict[tuple[int, int], None] = OrderedDict()

    def turn(self, session: int, num_blocks: int = NUM_BLOCKS) -> int:
        """Blocks that it finds."""
        blocks = [(session, index) for index in range(num_blocks)]
        num_found = next((at for at, b in enumerate(blocks) if b not in self._blocks), num_blocks)
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._num_max:
            self._blocks.popitem(last=False)
        return num_found


class Tiers(Host):
    """A host of so many blocks in each tier.

    Attributes:
        is_full: the file system takes no block.
        reports: the worker tells what its turns ran on, as connectors of other engines do not.
    """

    def __init__(
        self, arena: int, disk: int, objects: int = 0, eviction: EvictionName = "layer"
    ) -> None:
        limits = Limits(
            disk_bytes_max=disk * BLOCK_BYTES, expiry_ns=BIG, noted_ns=BIG, ticket_ns=BIG,
            eviction=eviction, write_wait_ns=0, copy_rest_ns=0, drops_max=2, lease_share=1.0,
            has_objects=objects > 0, objects_bytes_max=objects * BLOCK_BYTES, objects_rest_ns=0,
        )  # fmt: skip
        self.saves: deque[SaveRun] = deque()
        self.saved: dict[Run, list[BlockKey]] = {}
        super().__init__(arena * LAYERS, eviction=eviction, limits=limits)
        self.is_full, self.reports = False, True
        self.open()
        self.perform(self.core.objects.on_all_listed(self.now_ns))

    def perform(self, effects: list[Effect]) -> None:
        super().perform(effects)
        for effect in effects:
            if isinstance(effect, SaveRun):
                self.saves.append(effect)
            elif isinstance(effect, DropRuns):
                for run in effect.runs:
                    del self.saved[run]

    def settle(self) -> None:
        """Everything that was asked for is done."""
        while self.loads or self.writes or self.saves or self.fetches[OBJECTS]:
            while self.loads:
                self.finish_load()
            while self.fetches[OBJECTS]:
                self.finish_fetch(OBJECTS, owner=self.owner)
            while self.writes:
                self.finish_write(WriteOutcome.FULL if self.is_full else WriteOutcome.STORED)
            while self.saves:
                self._save(self.saves.popleft())
            self.pass_time(0)

    def _save(self, order: SaveRun) -> None:
        missing = next((key for key in order.keys if key not in self.core.disk), None)
        outcome = SaveOutcome.SAVED if missing is None else SaveOutcome.MISSING
        if missing is None:
            self.saved[order.run] = order.keys
        self.perform(self.core.on_saved(order.run, outcome, missing, self.now_ns))

    def turn(self, session: int, num_blocks: int = NUM_BLOCKS) -> int:
        """A session's next turn, that computes what it does not find; blocks that it found."""
        self.now_ns += STEP_NS
        self.owner = owner_of(session)
        keys = [key_of(session, index) for index in range(num_blocks)]
        in_store = set(chain.from_iterable(self.saved.values()))
        num_offered = next((at for at, key in enumerate(keys) if key not in in_store), num_blocks)
        offer = RemotePrefix(OBJECTS, num_offered) if num_offered else None
        staged = self.stage(session, num_blocks, offer=offer)
        self.settle()
        names = [(session, index) for index in range(staged.num_blocks, num_blocks)]
        pages = self.lease(len(names) * LAYERS)
        assert len(pages) == len(names) * LAYERS, "no room for a turn: something is left pinned"
        self.commit(names, pages, owner=self.owner)
        self.settle()
        self.release(staged.ticket)
        if self.reports:
            self.renew([], [], used=keys[-1:])
            self.pass_time(0)
        self.settle()
        return staged.num_blocks


def workload(name: str, seed: int) -> Iterator[tuple[int, int]]:
    """Sessions in the order of their turns, and how many blocks each has then."""
    random, sessions = Random(seed), range(NUM_SESSIONS)
    weights = [1 / (rank + 1) ** 1.2 if name == "zipf" else 1.0 for rank in sessions]
    chosen = random.choices(sessions, weights, k=NUM_TURNS)
    if name == "cyclic":
        chosen = [number % (2 + seed % NUM_SESSIONS) for number in range(NUM_TURNS)]
    num_turns: Counter[int] = Counter()
    for session in chosen:
        num_turns[session] += 1
        grown = min(num_turns[session], NUM_BLOCKS)
        yield session, grown if name == "growing" else NUM_BLOCKS


def holds_as_much(tiers: Tiers, alone: Alone, name: str, seed: int) -> None:
    for number, (session, num_blocks) in enumerate(workload(name, seed)):
        found, expected = tiers.turn(session, num_blocks), alone.turn(session, num_blocks)
        assert found >= expected, f"seed {seed}, turn {number} of session {session}"
    tiers.check_pages_conserved()


ROOM = NUM_BLOCKS  # an arena that holds one session
SIZES = [
    (ROOM, 0), (3 * ROOM, 1), (5 * ROOM, 2 * ROOM + 1), (20 * ROOM, 2 * ROOM), (4 * ROOM, 3 * ROOM),
    (3 * ROOM, 3 * ROOM), (3 * ROOM + 1, 3 * ROOM + 2), (ROOM, 5 * ROOM), (2 * ROOM + 1, 4 * ROOM),
]  # fmt: skip


@pytest.mark.parametrize("eviction", ["lru", "layer"])
@pytest.mark.parametrize("name", ["cyclic", "random", "zipf", "growing"])
@pytest.mark.parametrize(("arena", "disk"), SIZES)
def test_arena_and_disk_find_as_much_as_the_larger_one_alone(
    arena: int, disk: int, name: str, eviction: EvictionName
) -> None:
    seed = 7 * arena + disk
    tiers, alone = Tiers(arena, disk, eviction=eviction), Alone(max(arena, disk))
    holds_as_much(tiers, alone, name, seed)


@pytest.mark.parametrize("name", ["random", "zipf"])
@pytest.mark.parametrize(
    ("arena", "disk", "objects"),
    [
        (ROOM, 2 * ROOM, 4 * ROOM), (2 * ROOM, ROOM, 4 * ROOM), (4 * ROOM, ROOM, 2 * ROOM),
        (2 * ROOM, 4 * ROOM, ROOM), (4 * ROOM, 2 * ROOM, 3 * ROOM), (2 * ROOM, 2 * ROOM, 2 * ROOM),
        (ROOM, 3 * ROOM, 20 * ROOM),
    ],
)  # fmt: skip
def test_with_an_object_store_too(arena: int, disk: int, objects: int, name: str) -> None:
    holds_as_much(Tiers(arena, disk, objects), Alone(max(arena, disk, objects)), name, 3)


@pytest.mark.parametrize("disk", [ROOM, 9 * ROOM])
def test_what_a_full_file_system_refused_is_written_when_it_is_used_and_there_is_room(
    disk: int,
) -> None:
    tiers, sessions = Tiers(4 * ROOM, disk), range(3)
    tiers.is_full = True
    assert [tiers.turn(session) for session in [*sessions, *sessions]] == [0] * 3 + [NUM_BLOCKS] * 3
    assert not len(tiers.core.disk) and len(tiers.core.arena_only) == 3 * NUM_BLOCKS
    tiers.is_full = False
    tiers.turn(3)  # the first that finds room
    assert [tiers.turn(session) for session in sessions] == [NUM_BLOCKS] * 3
    tiers.check_pages_conserved()
    assert len(tiers.core.disk) == min(disk, 4 * NUM_BLOCKS)
    assert len(tiers.core.arena_only) == 4 * NUM_BLOCKS - len(tiers.core.disk)


@pytest.mark.parametrize("name", ["random", "zipf"])
@pytest.mark.parametrize(("arena", "disk"), [(2 * ROOM, 4 * ROOM), (4 * ROOM, 2 * ROOM)])
def test_a_disk_that_is_full_now_and_then_costs_nothing_that_memory_has(
    arena: int, disk: int, name: str
) -> None:
    tiers, alone = Tiers(arena, disk), Alone(arena)
    for number, (session, num_blocks) in enumerate(workload(name, 5)):
        tiers.is_full = number % 9 > 4
        assert tiers.turn(session, num_blocks) >= alone.turn(session, num_blocks)
        tiers.check_pages_conserved()


def test_what_is_computed_again_is_held_in_memory_though_the_disk_has_it() -> None:
    tiers = Tiers(2 * ROOM, 2 * ROOM)
    tiers.turn(0)
    tiers.evict_all()
    pages = tiers.lease(NUM_BLOCKS * LAYERS)
    tiers.commit([(0, index) for index in range(NUM_BLOCKS)], pages, owner=owner_of(0))
    tiers.settle()
    tiers.perform(tiers.core.on_disk_damaged(1, tiers.now_ns))
    assert tiers.turn(0) == NUM_BLOCKS


def test_what_only_memory_has_goes_after_layers_that_are_on_disk() -> None:
    tiers = Tiers(2 * ROOM, 9 * ROOM)
    for session in range(3):
        tiers.turn(session)
    tiers.is_full = True
    tiers.turn(3)
    assert tiers.arena.blocks.keys() & {key_of(1, 0), key_of(2, 0)}, "some of them are in layer 0"
    tiers.turn(4)
    assert tiers.turn(3) == NUM_BLOCKS


def test_a_block_that_was_to_be_saved_and_is_not_on_disk_stays_in_memory() -> None:
    tiers = Tiers(3 * ROOM, ROOM, 9 * ROOM)
    tiers.turn(0)
    run = next(iter(tiers.saved))
    tiers.turn(1)
    assert key_of(0, 0) in tiers.core.arena_only
    tiers.saved.clear()
    tiers.perform(tiers.core.on_saved(run, SaveOutcome.MISSING, key_of(0, 0), tiers.now_ns))
    assert tiers.turn(0) == NUM_BLOCKS
