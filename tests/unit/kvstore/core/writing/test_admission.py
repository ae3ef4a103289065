"""What is written where the disk cannot take all: it is full, or its writer is slow."""

from array import array
from collections.abc import Callable, Iterator
from random import Random

import pytest

from services.kvstore.core import WriteOutcome
from services.kvstore.core.disk.disk_tier import DiskTier
from services.kvstore.core.disk.stored_block import StoredBlock
from services.kvstore.core.tiers.arena_block import Announced, ArenaBlock
from services.kvstore.core.tiers.arena_only_blocks import ArenaOnlyBlocks
from services.kvstore.core.tiers.host_blocks import HostBlocks
from services.kvstore.core.tiers.source import Source
from services.kvstore.core.tiers.writes import Writes
from services.kvstore.core.writing import write_queue
from services.kvstore.core.writing.admission import Admission
from shared.eviction import ReturnModel
from tests.unit.kvstore.core.host import BLOCK_BYTES, LAYERS, PAGE_BYTES, key_of
from tests.unit.kvstore.core.test_tier_sizes import NUM_BLOCKS, ROOM, Tiers

SECOND_NS = 1_000_000_000
NUM_RETURNING = 4
NUM_TURNS = 400
NUM_PHASES = 8
DISK = NUM_RETURNING * ROOM + 1  # blocks: what returns, and little else
NUM_LEARNT = 200  # turns, after which it is known what returns


class Slow(Tiers):
    """A host whose writer stores so many blocks a turn.

    Attributes:
        num_written: blocks, since the start.
        num_waiting_max: blocks that the arena could not give up.
    """

    def __init__(self, arena: int, disk: int, blocks_a_turn: int) -> None:
        self._blocks_a_turn = self._num_left = blocks_a_turn
        self.num_written = self.num_waiting_max = 0
        super().__init__(arena, disk, eviction="predicted")

    def finish_write(self, outcome: WriteOutcome = WriteOutcome.STORED) -> None:
        self.num_written += 1
        super().finish_write(outcome)

    def settle(self) -> None:
        """As much as the writer manages."""
        while self.loads or (self.writes and self._num_left):
            while self.loads:
                self.finish_load()
            if self.writes and self._num_left:
                self._num_left -= 1
                self.finish_write()
            self.pass_time(0)

    def turn(self, session: int, num_blocks: int = NUM_BLOCKS) -> int:
        self._num_left = self._blocks_a_turn
        found = super().turn(session, num_blocks)
        self.num_waiting_max = max(self.num_waiting_max, self.core.num_writing)
        return found


def turns(num_phases: int) -> Iterator[int]:
    """Sessions: a few that return, others in each phase, and as many turns of ones that come
    once."""
    random = Random(3)
    for number in range(NUM_TURNS):
        phase = number * num_phases // NUM_TURNS
        is_once = random.random() < 0.5
        yield number if is_once else returning(phase)[random.randrange(NUM_RETURNING)]


def returning(phase: int) -> range:
    """Sessions that return in it."""
    return range(NUM_TURNS + phase * NUM_RETURNING, NUM_TURNS + (phase + 1) * NUM_RETURNING)


def play(tiers: Slow, num_phases: int = 1) -> tuple[int, int]:
    """Blocks found, and written, once it is known what returns."""
    num_found = num_before = 0
    for number, session in enumerate(turns(num_phases)):
        if number == NUM_LEARNT:
            num_found, num_before = 0, tiers.num_written
        tiers.now_ns += 5 * SECOND_NS
        num_found += tiers.turn(session)
    tiers.check_pages_conserved()
    return num_found, tiers.num_written - num_before


def on_disk(tiers: Tiers, sessions: range) -> int:
    keys = [key_of(session, index) for session in sessions for index in range(NUM_BLOCKS)]
    return sum(key in tiers.core.disk for key in keys)


@pytest.fixture
def admit_all(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From then on, everything is written."""

    def patch() -> None:
        monkeypatch.setattr(Admission, "judge", lambda self, now_ns: lambda write: True)
        monkeypatch.setattr(Admission, "worth", lambda self, write, now_ns: write_queue.MUST)

    return patch


@pytest.fixture
def small_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much waits as is something beside these arenas."""
    monkeypatch.setattr(write_queue, "NEW_WAITING_BYTES", BLOCK_BYTES)
    monkeypatch.setattr(write_queue, "COPY_WAITING_BYTES", 2 * BLOCK_BYTES)
    monkeypatch.setattr(write_queue, "SENT_BYTES", 2 * BLOCK_BYTES)


def test_a_full_disk_is_not_given_what_it_would_evict_next(admit_all: Callable[[], None]) -> None:
    tiers = Slow(2 * ROOM, DISK, blocks_a_turn=100)
    num_found, num_written = play(tiers)
    assert on_disk(tiers, returning(0)) == NUM_RETURNING * NUM_BLOCKS
    admit_all()
    num_found_without, num_written_without = play(Slow(2 * ROOM, DISK, blocks_a_turn=100))
    assert num_found >= num_found_without
    assert num_written < num_written_without / 2
    assert tiers.core.counts.num_blocks_refused > num_written


@pytest.mark.usefixtures("small_queue")
def test_a_slow_writer_stores_what_returns(admit_all: Callable[[], None]) -> None:
    """It stores a half of what comes, or all of what returns."""
    tiers = Slow(4 * ROOM, 1000 * ROOM, blocks_a_turn=1)
    play(tiers, NUM_PHASES)
    assert on_disk(tiers, returning(NUM_PHASES - 1)) == NUM_RETURNING * NUM_BLOCKS
    assert tiers.num_waiting_max <= 3 * NUM_BLOCKS
    admit_all()
    with pytest.raises(AssertionError, match="no room for a turn"):  # all waits to be written
        play(Slow(4 * ROOM, 1000 * ROOM, blocks_a_turn=1), NUM_PHASES)


class Rates(ReturnModel):
    """Of kind 1 or higher, as often as its number says."""

    def index(self, kind: int, age_bin: int) -> float:
        return float(kind)

    def is_known(self, kind: int) -> bool:
        return kind > 0


class FullDisk:
    """One on which the block that is worth least is of kind 2, and what waits for it.

    Attributes:
        blocks: of sequence 1, each continuing the one before it, of these kinds.
    """

    def __init__(self, kinds: list[int], expiry_s: int = 0, *, is_way_on: bool = False) -> None:
        self.disk = DiskTier(2 * BLOCK_BYTES, returns=Rates())
        for sequence, kind in enumerate([2, 3]):
            stored = StoredBlock(key_of(sequence, 0), LAYERS, BLOCK_BYTES, BLOCK_BYTES, 0, 0)
            stored.return_kind = kind
            self.disk.add(stored)
        self.memory, self.writes = ArenaOnlyBlocks(), Writes()
        here = HostBlocks(self.disk, self.memory)
        self.admission = Admission(here, self.writes, is_way_on=is_way_on)
        self.blocks = [self._block(at, kind) for at, kind in enumerate(kinds)]
        self.waiting = [self.writes.begin(block, expiry_s) for block in self.blocks]

    def _block(self, at: int, kind: int) -> ArenaBlock:
        announced = Announced("f", array("i", [1]), array("Q", [0] * LAYERS))
        return ArenaBlock(
            at, key_of(9, at), PAGE_BYTES, [0] * LAYERS, [0] * LAYERS, LAYERS, at, 0, Source(),
            parent=key_of(9, at - 1), announced=announced, return_kind=kind,
        )  # fmt: skip

    def judge(self) -> list[bool]:
        """Which of the blocks are to be written."""
        return list(map(self.admission.judge(0), self.waiting))


def test_a_block_is_written_that_is_worth_as_much_as_the_least_on_the_full_disk() -> None:
    assert [FullDisk([kind]).judge()[0] for kind in range(4)] == [True, False, True, True]


def test_what_continues_a_block_that_is_not_written_is_not_either() -> None:
    assert FullDisk([2, 1, 3, 3]).judge() == [True, False, False, False]


def test_a_disk_with_room_gets_everything() -> None:
    full = FullDisk([1])
    full.disk.remove(key_of(0, 0))
    assert full.judge() == [True]


def test_what_continues_a_refused_block_is_refused_later_too() -> None:
    full = FullDisk([3, 3])
    full.disk.clear()
    first = full.blocks[0]
    alone = StoredBlock(first.key, LAYERS, PAGE_BYTES, 0, 0, 0, parent=first.parent)
    full.memory.add(alone, None)
    assert full.judge() == [True, True], "it is to be written again"
    full.writes.end(first.block_id)
    del full.waiting[0]
    assert full.judge() == [True], "the disk did not take the first, and may take it yet"
    alone.is_refused = True
    assert full.judge() == [False]


def test_by_last_use_a_disk_gets_everything() -> None:
    full = FullDisk([1])
    full.disk.guard.is_trusted = False
    assert full.judge() == [True]


def test_what_a_ticket_holds_and_what_has_an_expiry_of_its_own_is_written() -> None:
    full = FullDisk([1])
    full.blocks[0].num_pins = 1
    assert full.judge() == [True]
    assert FullDisk([1], expiry_s=3600).judge() == [True]


def test_a_disk_on_the_way_to_an_object_store_gets_everything() -> None:
    assert FullDisk([1], is_way_on=True).judge() == [True]
