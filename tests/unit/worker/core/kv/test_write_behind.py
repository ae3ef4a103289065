import pytest

from services.worker.core.effects import (
    BlockWrite,
    CommitBlocks,
    LeasePages,
    ReturnPages,
    StoreBlocks,
)
from services.worker.core.engine.integrity import check_integrity
from services.worker.core.kv import write_behind
from services.worker.core.kv.write_behind import LEASE_PAUSE_NS, TRIES_MAX
from services.worker.core.step import StepPlan
from shared.wire.messages import SamplingParams
from tests.unit.worker.driver import (
    NUM_LAYERS,
    Engine,
    keys_of,
    new_core,
    new_turn,
    of_kind,
    stock_of,
    take_pages,
)

PROMPT = list(range(100, 109))  # two blocks and a token
KEYS = keys_of(PROMPT)
ONCE = SamplingParams(max_tokens=1)


@pytest.fixture
def engine() -> Engine:
    """Connected, but every turn computes: stages time out at once."""
    engine = Engine(new_core(lease_target_blocks=4, stage_timeout_max_ns=0, stage_timeout_min_ns=0))
    engine.core.write_behind.connect(1)
    return engine


def lease(engine: Engine, num_blocks: int) -> None:
    engine.core.write_behind.refill(engine.now_ns)
    engine.core.on_leased(list(range(num_blocks * NUM_LAYERS)))


def planned(engine: Engine) -> StepPlan:
    plan = engine.plan()
    assert plan is not None
    return plan


def pages_of(writes: list[BlockWrite]) -> set[int]:
    return {page for write in writes for page in write.arena_pages}


class TestWriting:
    def test_new_blocks_are_written_once_the_step_that_fills_them_is_over(
        self, engine: Engine
    ) -> None:
        lease(engine, 4)
        turn = new_turn("t", PROMPT, sampling=ONCE)
        engine.run(turn)
        assert not of_kind(engine.effects, StoreBlocks)
        writes = engine.write()
        assert [write.key for write in writes] == KEYS
        assert [write.parent for write in writes] == [turn.cache.root, KEYS[0]]
        assert [write.tokens for write in writes] == [PROMPT[:4], PROMPT[4:8]]
        pool = engine.core.pool
        held = [pool.pages_of(pool.blocks[key]) for key in KEYS]
        assert [write.pool_pages for write in writes] == held
        assert len(pages_of(writes)) == 2 * NUM_LAYERS

    def test_they_are_committed_in_whatever_parts_they_end(self, engine: Engine) -> None:
        lease(engine, 4)
        engine.run(new_turn("t", PROMPT, sampling=ONCE))
        first, second = engine.write()
        for write in (second, first):
            sums = [write.number, 7]
            (commit,) = engine.core.on_stored({write.number: sums})
            assert commit == CommitBlocks([write], [sums])
            assert engine.core.on_stored({write.number: sums}) == [], "told twice"

    def test_a_committed_block_is_clean(self, engine: Engine) -> None:
        lease(engine, 4)
        engine.run(new_turn("t", PROMPT, sampling=ONCE))
        engine.write()
        engine.store_all()
        assert engine.core.pool.num_takeable == 0
        engine.core.on_committed(KEYS)
        assert engine.core.pool.num_takeable == 2 * NUM_LAYERS
        assert engine.core.write_behind.num_unwritten == 0

    def test_without_pages_a_block_is_written_later(self, engine: Engine) -> None:
        engine.run(new_turn("t", PROMPT, sampling=ONCE))
        assert engine.write() == []
        assert engine.core.write_behind.num_unwritten == 2
        engine.core.on_leased(list(range(NUM_LAYERS)))  # one block's
        assert [write.key for write in engine.write()] == KEYS[:1]
        assert len(of_kind(engine.store_all(), CommitBlocks)) == 1

    @pytest.mark.parametrize("is_lost", [False, True])
    def test_pages_that_were_not_written_well_go_back(self, engine: Engine, is_lost: bool) -> None:
        lease(engine, 4)
        engine.run(new_turn("t", PROMPT, sampling=ONCE))
        writes = engine.write()
        for block in engine.core.pool.blocks.values():
            block.lost = is_lost  # its turn broke meanwhile
        effects = engine.store_all(is_good=is_lost)
        assert not of_kind(effects, CommitBlocks)
        (returned,) = of_kind(effects, ReturnPages)
        assert set(returned.arena_pages) == pages_of(writes)
        assert engine.core.write_behind.num_given_up == 2
        assert bool(engine.core.pool.blocks) != is_lost

    def test_a_block_two_rows_compute_is_written_once(self, engine: Engine) -> None:
        lease(engine, 4)
        for name in ("a", "b"):
            engine.submit(new_turn(name, PROMPT, sampling=ONCE))
        engine.step()
        assert [write.key for write in engine.write()] == KEYS
        assert engine.core.write_behind.num_unwritten == 2

    def test_too_many_unwritten_blocks_are_given_up_from_the_end(self) -> None:
        engine = Engine(new_core(num_blocks=8, stage_timeout_max_ns=0, stage_timeout_min_ns=0))
        engine.core.write_behind.connect(1)
        engine.run(new_turn("t", list(range(100, 113)), sampling=ONCE))
        assert engine.core.write_behind.num_given_up == 1
        blocks = engine.core.pool.blocks.values()
        assert [block.backed for block in blocks] == [False, False, True]

    def test_what_was_given_up_is_written_when_something_follows_it(self) -> None:
        engine = Engine(new_core(num_blocks=8, stage_timeout_max_ns=0, stage_timeout_min_ns=0))
        engine.core.write_behind.connect(1)
        prompt = list(range(100, 113))
        engine.run(new_turn("t", prompt, sampling=ONCE))
        engine.core.on_leased(list(range(8 * NUM_LAYERS)))
        keys = keys_of([*prompt, 9, 9, 9])
        assert [write.key for write in engine.write()] == keys[:2]
        engine.submit(new_turn("u", [*prompt, 9, 9, 9, 1], sampling=ONCE))
        engine.step()
        assert [write.key for write in engine.write()] == keys[2:], "and what it stands before"

    def test_what_is_given_up_again_and_again_is_left(self) -> None:
        engine = Engine(new_core(num_blocks=32, stage_timeout_max_ns=0, stage_timeout_min_ns=0))
        engine.core.write_behind.connect(1)
        lease(engine, 32)
        turn = new_turn("t", PROMPT, sampling=SamplingParams(max_tokens=12))
        engine.submit(turn)
        tried: list[bytes] = []
        while engine.core.turns:
            before = len(engine.effects)
            engine.step()
            for each in of_kind(engine.effects[before:], StoreBlocks):
                tried += [write.key for write in each.writes]
            engine.store_all(is_good=False)
        keys = keys_of(turn.tokens)
        assert [tried.count(key) for key in keys[:3]] == [TRIES_MAX, TRIES_MAX, 1]
        assert keys[3:] and not {*tried} & {*keys[3:]}, "it would be of no use"
        engine.core.write_behind.connect(2)
        lease(engine, 32)
        engine.submit(new_turn("u", [*turn.tokens, 1, 2, 3], sampling=ONCE))
        engine.step()
        again = [write.key for write in engine.write()]
        assert again == keys_of([*turn.tokens, 1, 2, 3]), "another kvstore may take them"

    def test_unwritten_blocks_cannot_starve_a_turn(self) -> None:
        engine = Engine(new_core(num_blocks=8, stage_timeout_max_ns=0, stage_timeout_min_ns=0))
        engine.core.write_behind.connect(1)
        engine.run(new_turn("t", PROMPT, sampling=ONCE))
        assert engine.core.pool.num_takeable == 0
        engine.submit(new_turn("large", list(range(200, 231))))
        assert planned(engine).turn_ids == ["large"]
        assert engine.core.write_behind.num_given_up == 2


class TestGivenUp:
    """Blocks whose copy was given up are no clean ones, and get one when there is room."""

    def give_up(self, engine: Engine) -> None:
        """A turn's two blocks find nobody who takes them."""
        engine.core.write_behind.disconnect()
        engine.run(new_turn("t", PROMPT, sampling=ONCE))
        engine.core.write_behind.connect(2)

    def pass_pause(self, engine: Engine) -> list[BlockWrite]:
        at_ns = engine.core.next_deadline_ns()
        assert at_ns is not None, "nobody would look again"
        engine.now_ns = at_ns
        return engine.write()

    def test_their_pages_can_be_taken_and_are_told_apart(self, engine: Engine) -> None:
        self.give_up(engine)
        pool = engine.core.pool
        assert pool.num_takeable == pool.num_unsafe == 2 * NUM_LAYERS
        assert take_pages(pool, pool.num_free + 1) is not None
        assert pool.num_takeable == pool.num_unsafe == 2 * NUM_LAYERS - 1

    def test_they_are_written_from_the_first_on_as_far_as_there_is_room(
        self, engine: Engine
    ) -> None:
        self.give_up(engine)
        assert engine.write() == [], "there is no room yet"
        engine.core.on_leased(list(range(NUM_LAYERS)))
        (write,) = self.pass_pause(engine)
        assert write.key == KEYS[0]
        engine.store_all()
        engine.core.on_committed([write.key])
        pool = engine.core.pool
        assert (pool.num_takeable, pool.num_unsafe) == (2 * NUM_LAYERS, NUM_LAYERS)
        check_integrity(engine.core)

    def test_nothing_is_written_behind_what_was_given_up_for_good(self, engine: Engine) -> None:
        self.give_up(engine)
        engine.write()
        engine.core.on_leased(list(range(NUM_LAYERS)))
        (write,) = self.pass_pause(engine)
        engine.store_all(is_good=False)
        assert write.key == KEYS[0]
        engine.now_ns += LEASE_PAUSE_NS
        engine.write()
        engine.core.on_leased(list(range(NUM_LAYERS, 5 * NUM_LAYERS)))
        assert stock_of(engine) and self.pass_pause(engine) == []
        check_integrity(engine.core)

    def write_in_time(self, engine: Engine) -> list[bytes]:
        """Keys of all that is written by and by, where there is room for one block at a time."""
        written: list[bytes] = []
        writes = engine.write()
        for _ in range(100):
            written += [write.key for write in writes]
            engine.store_all()
            engine.core.on_committed([write.key for write in writes])
            engine.core.on_leased(list(range(NUM_LAYERS)))
            if (at_ns := engine.core.next_deadline_ns()) is None:
                return written
            engine.now_ns = max(at_ns, engine.now_ns)
            writes = engine.write()
        raise AssertionError("it looks for ever")

    def test_what_there_was_no_room_for_is_written_in_its_time(self) -> None:
        """All of it, however much came at once and however often more came behind it."""
        engine = Engine(new_core(num_blocks=32, stage_timeout_max_ns=0, stage_timeout_min_ns=0))
        engine.core.write_behind.connect(1)
        prompt = list(range(100, 181))  # 20 blocks; 8 may wait
        engine.run(new_turn("t", prompt, sampling=SamplingParams(max_tokens=9)))
        written = self.write_in_time(engine)
        assert written[:20] == keys_of(prompt) and len(written) == len(set(written)) == 22
        assert engine.core.pool.num_unsafe == 0
        check_integrity(engine.core)

    def test_to_wait_in_vain_again_and_again_is_no_try(self) -> None:
        """There is room for one more whenever one more follows."""
        engine = Engine(new_core(num_blocks=64, stage_timeout_max_ns=0, stage_timeout_min_ns=0))
        engine.core.write_behind.connect(1)
        turn = new_turn("t", list(range(1, 130)), sampling=SamplingParams(max_tokens=30))
        engine.submit(turn)  # of 32 blocks; 16 may wait
        while engine.core.turns:
            engine.step()
            engine.core.on_leased(list(range(NUM_LAYERS)))
            commits = of_kind(engine.store_all(), CommitBlocks)
            engine.core.on_committed([write.key for each in commits for write in each.writes])
        self.write_in_time(engine)
        assert engine.core.pool.num_unsafe == 0

    def test_the_first_of_it_are_remembered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(write_behind, "LATE_MAX", 4)
        engine = Engine(new_core(num_blocks=32, stage_timeout_max_ns=0, stage_timeout_min_ns=0))
        engine.core.write_behind.connect(1)
        prompt = list(range(100, 181))
        engine.run(new_turn("t", prompt, sampling=ONCE))
        assert self.write_in_time(engine) == keys_of(prompt)[:12]
        engine.run(new_turn("u", [*prompt, 1, 2, 3, 4], sampling=ONCE))
        again = self.write_in_time(engine)
        assert again == keys_of([*prompt, 1, 2, 3, 4])[12:], "and the rest when something follows"

    def test_what_was_taken_meanwhile_is_not_written(self, engine: Engine) -> None:
        self.give_up(engine)
        pool = engine.core.pool
        take_pages(pool, pool.num_free + 2)  # the last layers of both
        engine.core.write_behind.refill(engine.now_ns)
        engine.core.on_leased(list(range(4 * NUM_LAYERS)))
        assert self.pass_pause(engine) == []
        assert engine.core.next_deadline_ns() is None, "there is nothing left to write"

    def test_nobody_looks_for_ever(self, engine: Engine) -> None:
        self.give_up(engine)
        engine.write()
        engine.core.on_leased([])
        for _ in range(20):
            if (at_ns := engine.core.next_deadline_ns()) is None:
                break
            engine.now_ns = at_ns
            engine.write()
            engine.core.on_leased([])
        assert engine.core.next_deadline_ns() is None


class TestLeases:
    def test_the_stock_is_kept_near_its_target(self, engine: Engine) -> None:
        write_behind = engine.core.write_behind
        assert write_behind.refill(0) == [LeasePages(4 * NUM_LAYERS)]
        assert write_behind.refill(0) == [], "asked already"
        engine.core.on_leased(list(range(8)))
        assert write_behind.refill(0) == []
        engine.run(new_turn("t", PROMPT, sampling=ONCE))
        assert len(engine.write()) == 2
        assert engine.effects[-1] == LeasePages(4)

    def pages_wanted(self, engine: Engine) -> int:
        return engine.core.write_behind._pages_wanted

    def test_it_follows_the_steps_and_forgets_a_large_one(self) -> None:
        engine = Engine(new_core(num_blocks=64, lease_target_blocks=2, stage_timeout_max_ns=0))
        write_behind = engine.core.write_behind
        write_behind.connect(1)
        engine.run(new_turn("t", list(range(1, 42)), sampling=ONCE))
        assert of_kind(engine.effects, LeasePages) == [LeasePages(2 * NUM_LAYERS)]
        engine.core.on_leased(list(range(2 * NUM_LAYERS)))
        engine.now_ns += LEASE_PAUSE_NS
        assert len(engine.write()) == 2
        asked = of_kind(engine.effects, LeasePages)[-1].num_pages
        assert 2 * 9 * NUM_LAYERS < asked <= 2 * 10 * NUM_LAYERS
        engine.core.on_leased(list(range(100, 100 + asked)))
        engine.plan()
        assert self.pages_wanted(engine) > 2 * 9 * NUM_LAYERS, "the next large step may come soon"
        for _ in range(200):
            engine.plan()
        assert self.pages_wanted(engine) == 2 * NUM_LAYERS

    def test_a_kvstore_without_room_is_asked_again_after_a_pause(self, engine: Engine) -> None:
        write_behind = engine.core.write_behind
        engine.run(new_turn("t", PROMPT, sampling=ONCE))
        asked_at_ns = write_behind.next_ask_at_ns
        assert asked_at_ns is None, "an answer is to come"
        engine.core.on_leased([])
        start_ns = write_behind.next_ask_at_ns
        assert start_ns is not None and start_ns == engine.core.next_deadline_ns()
        assert write_behind.refill(start_ns - 1) == []
        assert len(write_behind.refill(start_ns)) == 1
        engine.core.on_leased([])
        assert write_behind.next_ask_at_ns == start_ns + LEASE_PAUSE_NS

    def test_without_a_kvstore_nobody_is_asked(self) -> None:
        assert Engine().core.write_behind.refill(0) == []


class TestLosingTheKvstore:
    def test_dirty_blocks_become_clean(self, engine: Engine) -> None:
        lease(engine, 1)
        engine.run(new_turn("t", PROMPT, sampling=ONCE))
        assert len(engine.write()) == 1
        assert engine.core.write_behind.num_unwritten == 2  # one under way, one without pages
        engine.core.write_behind.disconnect()
        assert engine.core.pool.num_takeable == 2 * NUM_LAYERS
        assert engine.core.write_behind.num_unwritten == 0

    def test_a_new_kvstore_knows_nothing_of_commits_to_the_old(self, engine: Engine) -> None:
        lease(engine, 4)
        engine.run(new_turn("t", PROMPT, sampling=ONCE))
        engine.write()
        engine.store_all()
        engine.core.write_behind.connect(1)
        assert engine.core.pool.num_takeable == 2 * NUM_LAYERS
        engine.core.on_committed(KEYS)
        assert engine.core.pool.num_takeable == 2 * NUM_LAYERS

    def test_without_one_blocks_are_clean_at_once(self) -> None:
        engine = Engine()
        engine.run(new_turn("t", PROMPT, sampling=ONCE))
        assert engine.core.pool.num_takeable == 2 * NUM_LAYERS

    def test_what_is_written_into_an_old_lease_counts_for_nothing(self, engine: Engine) -> None:
        lease(engine, 4)
        engine.run(new_turn("t", PROMPT, sampling=ONCE))
        old = engine.write()
        engine.core.write_behind.connect(2)
        lease(engine, 4)  # the same pages, by chance
        assert engine.core.on_stored({write.number: [0, 0] for write in old}) == []

    def test_pages_of_a_lost_connection_are_not_used(self, engine: Engine) -> None:
        write_behind = engine.core.write_behind
        write_behind.refill(0)
        write_behind.disconnect()
        engine.core.on_leased([1, 2, 3])
        write_behind.connect(2)
        engine.run(new_turn("t", PROMPT, sampling=ONCE))
        assert engine.write() == []
