"""The last, partial block of a session: kept at a turn's end, found and gone on in by the next."""

from dataclasses import replace

import pytest

from services.worker.core.effects import (
    BlockWrite,
    CommitBlocks,
    LoadPages,
    ReleaseTicket,
    ReturnPages,
    StageTurn,
)
from services.worker.core.engine.integrity import check_integrity
from services.worker.core.kv.pages import NO_KEY, Block
from services.worker.core.turns.intake import ModelShape, take_in
from services.worker.core.turns.turn import Turn
from shared.blocks import BlockKey, child_key
from shared.errors import InvalidRequest
from shared.expiry import EXPIRY_S_MAX
from shared.ids import FrontendId, ModelId, SessionId, TurnId
from shared.wire.messages import Prompt, SamplingParams, TurnStart, pack_ints
from tests.unit.worker.driver import (
    BLOCK_TOKENS,
    END_TOKEN,
    NUM_LAYERS,
    PLAIN_TOKEN,
    ROOT,
    Engine,
    keys_of,
    new_core,
    new_turn,
    of_kind,
    staged_blocks,
    stock_of,
)

S = SessionId("s")
SAID = list(range(100, 110))  # two blocks and two tokens
NEXT = [*SAID, *range(200, 203)]  # what the session says next: it ends in the fourth block


def tail_of(tokens: list[int]) -> BlockKey:
    """Key of the partial last block."""
    keys = keys_of(tokens)
    return child_key(keys[-1] if keys else ROOT, tokens[len(keys) * BLOCK_TOKENS :])


def turn_of(name: str, tokens: list[int], num_history: int = 0, max_tokens: int = 1) -> Turn:
    sampling = SamplingParams(max_tokens=max_tokens)
    return new_turn(name, tokens, sampling=sampling, session_id=S, num_history=num_history)


def tail_in(engine: Engine, tokens: list[int] = SAID) -> Block | None:
    """The block that can be found under the tail's key."""
    return engine.core.pool.blocks.get(tail_of(tokens))


def connected() -> Engine:
    """With room to write into."""
    engine = Engine(new_core(lease_target_blocks=8, stage_timeout_max_ns=0, stage_timeout_min_ns=0))
    engine.core.write_behind.connect(1)
    engine.core.write_behind.refill(engine.now_ns)
    engine.core.on_leased(list(range(32)))
    return engine


def written(engine: Engine) -> list[BlockWrite]:
    """Write all that waits, and hear that it was taken over."""
    engine.write()
    commits = of_kind(engine.store_all(), CommitBlocks)
    writes = [write for commit in commits for write in commit.writes]
    engine.core.on_committed([write.key for write in writes])
    check_integrity(engine.core)
    return writes


@pytest.fixture
def engine() -> Engine:
    """That has had the session's first turn: nobody is below."""
    engine = Engine()
    engine.run(turn_of("t", SAID))
    return engine


class TestKept:
    def test_what_has_kv_is_found_under_its_own_key(self, engine: Engine) -> None:
        assert list(engine.core.pool.blocks) == [*keys_of(SAID), tail_of(SAID)]
        check_integrity(engine.core)

    @pytest.mark.parametrize("ends", ["by its length", "by an end token"])
    def test_the_last_token_is_not_in_it_however_the_turn_ended(self, ends: str) -> None:
        engine = Engine()
        engine.submit(turn_of("t", SAID, max_tokens=3 if ends == "by its length" else 9))
        for token in (7, 8, END_TOKEN if ends == "by an end token" else 9):
            engine.step(token)
        assert not engine.core.turns
        # Two more tokens fill the block; the third has no KV.
        assert list(engine.core.pool.blocks) == keys_of([*SAID, 7, 8])

    def test_nor_if_a_step_ahead_has_run_on_it(self) -> None:
        engine = Engine()
        engine.submit(turn_of("t", SAID, max_tokens=9))
        first, ahead = engine.plan(), engine.plan()
        assert first is not None and ahead is not None
        engine.finish(first, END_TOKEN)
        engine.finish(ahead)
        assert tail_in(engine) is not None and tail_in(engine, [*SAID, END_TOKEN]) is None

    @pytest.mark.parametrize(
        ("num_kept", "is_found"),
        [(11, True), (10, True), (8, False), (12, False), (0, False), (-1, False), (99, False)],
    )
    def test_of_a_cancelled_one_what_its_session_goes_on_from(
        self, num_kept: int, is_found: bool
    ) -> None:
        """A stop string was found in what the frontend has; the worker is some tokens ahead."""
        engine = Engine()
        engine.submit(turn_of("t", SAID, max_tokens=9))
        engine.step(7)
        plan = engine.plan()
        assert plan is not None
        engine.core.on_cancel(TurnId("t"), num_kept=num_kept)
        engine.finish(plan, 7)
        assert not engine.core.running
        kept = [*SAID, 7, 7, 7][: max(num_kept, 0)]
        full = keys_of(SAID)
        assert list(engine.core.pool.blocks) == [*full, *([tail_of(kept)] if is_found else [])]
        check_integrity(engine.core)
        if is_found:
            again = turn_of("u", [*kept, 9, 9], num_history=num_kept)
            engine.run(again)
            assert again.cache.num_cached == num_kept, "no token of it is computed again"
            check_integrity(engine.core)

    def test_not_more_than_has_kv(self) -> None:
        """Whatever a frontend says: nobody has run on the token that came last."""
        engine = Engine()
        engine.submit(turn_of("t", SAID, max_tokens=9))
        engine.step(7)
        engine.core.on_cancel(TurnId("t"), num_kept=len(SAID) + 1)
        assert list(engine.core.pool.blocks) == keys_of(SAID)
        check_integrity(engine.core)

    def test_not_where_the_block_has_been_filled_since(self) -> None:
        engine = Engine()
        engine.submit(turn_of("t", SAID, max_tokens=9))
        for token in (7, 8, 9):
            engine.step(token)
        engine.core.on_cancel(TurnId("t"), num_kept=11)
        assert list(engine.core.pool.blocks) == keys_of([*SAID, 7, 8])
        check_integrity(engine.core)

    def test_not_of_a_turn_that_was_cancelled_or_is_of_no_session(self) -> None:
        engine = Engine()
        engine.submit(turn_of("t", SAID, max_tokens=9))
        engine.step()
        engine.core.on_cancel(TurnId("t"))
        engine.run(new_turn("u", SAID, sampling=SamplingParams(max_tokens=1)))
        assert list(engine.core.pool.blocks) == keys_of(SAID)

    def test_not_of_a_turn_whose_last_row_was_void(self) -> None:
        engine = Engine()
        engine.submit(turn_of("t", SAID, max_tokens=9))
        first, ahead = engine.plan(), engine.plan()
        assert first is not None and ahead is not None
        engine.finish(first, END_TOKEN)
        engine.finish(ahead, broken={0: "it cannot be computed"})
        assert tail_in(engine) is None

    def test_a_twin_that_is_here_stays(self, engine: Engine) -> None:
        twin = tail_in(engine)
        engine.run(turn_of("again", SAID))
        assert tail_in(engine) is twin
        check_integrity(engine.core)

    def test_it_goes_below_after_what_it_continues(self) -> None:
        engine = connected()
        engine.run(turn_of("t", SAID))
        writes = written(engine)
        assert [write.key for write in writes] == [*keys_of(SAID), tail_of(SAID)]
        assert writes[-1].tokens == SAID[8:] and writes[-1].parent == keys_of(SAID)[-1]
        tail = tail_in(engine)
        assert tail is not None and tail.is_safe

    def test_what_goes_below_says_how_long_its_turn_wants_it_kept(self) -> None:
        engine = connected()
        turn = turn_of("t", SAID)
        turn.request = replace(turn.request, expiry_s=60)
        engine.run(turn)
        assert {write.expiry_s for write in written(engine)} == {60}


class TestGoneOnIn:
    def test_no_token_is_computed_twice(self, engine: Engine) -> None:
        (first,) = engine.run(turn_of("u", NEXT, num_history=10))
        assert first.cached_tokens == 10
        assert engine.core.history.num_prefix_hits == 3
        check_integrity(engine.core)

    def test_a_session_of_many_turns_computes_each_token_once(self) -> None:
        engine, tokens, num_history, num_computed = Engine(new_core(64)), SAID, 0, 0
        for number in range(12):
            engine.submit(turn_of(f"t{number}", tokens, num_history, max_tokens=1 + number % 5))
            while engine.core.turns:
                num_computed += sum(row.end - row.start for row in engine.step())
            num_history = len(tokens) + number % 5
            tokens = [*tokens, *[PLAIN_TOKEN] * (1 + number % 5), 50 + number]
            assert num_computed == num_history
        check_integrity(engine.core)

    def test_all_but_one_of_a_prompt_that_is_all_history(self, engine: Engine) -> None:
        (first,) = engine.run(turn_of("u", SAID, num_history=10))
        assert first.cached_tokens == 9

    @pytest.mark.parametrize("num_history", [9, 11, 13])
    def test_a_wrong_number_finds_nothing(self, engine: Engine, num_history: int) -> None:
        (first,) = engine.run(turn_of("u", NEXT, num_history))
        assert first.cached_tokens == 8

    def test_nor_do_other_tokens(self, engine: Engine) -> None:
        other = [*SAID[:9], 77, *NEXT[10:]]
        assert engine.run(turn_of("u", other, num_history=10))[0].cached_tokens == 8

    def test_nor_who_wants_the_prompts_log_probabilities(self, engine: Engine) -> None:
        turn = turn_of("u", NEXT, num_history=10)
        turn.request = replace(
            turn.request, sampling=SamplingParams(max_tokens=1, prompt_logprobs=0)
        )
        engine.submit(turn)
        assert engine.step()[0].start == 0

    def test_nobody_else_finds_it_while_it_changes(self, engine: Engine) -> None:
        tail = tail_in(engine)
        turn = turn_of("u", NEXT, num_history=10, max_tokens=9)
        engine.submit(turn)
        engine.step()
        assert tail_in(engine) is None and turn.cache.held(2) is tail
        other = turn_of("v", [*SAID, 300, 301], num_history=10)
        engine.submit(other)
        engine.step()
        assert other.cache.num_cached == 8 and not set(turn.cache.own) & set(other.cache.own)
        check_integrity(engine.core)

    def test_two_that_wait_for_it_do_not_both_get_it(self, engine: Engine) -> None:
        turns = [turn_of(name, [*SAID, 300], num_history=10, max_tokens=9) for name in "uv"]
        for turn in turns:
            engine.submit(turn)
        engine.step()
        assert sorted(turn.cache.num_cached for turn in turns) == [8, 10]
        pages = [page for turn in turns for page in engine.core.pool.pages_of(turn.cache.held(2))]
        assert len(set(pages)) == 2 * NUM_LAYERS
        check_integrity(engine.core)

    def test_full_it_is_found_under_its_full_key(self, engine: Engine) -> None:
        tail = tail_in(engine)
        engine.run(turn_of("u", NEXT, num_history=10))
        assert engine.core.pool.blocks[keys_of(NEXT)[2]] is tail
        assert tail_in(engine) is None and tail_in(engine, NEXT) is not None
        check_integrity(engine.core)

    def test_a_full_twin_stands_in_for_it(self, engine: Engine) -> None:
        turn = turn_of("u", NEXT, num_history=10, max_tokens=9)
        engine.submit(turn)
        plan = engine.plan()
        assert plan is not None
        engine.core.pool.publish(
            engine.core.pool.allocate(1)[0], keys_of(NEXT)[2], turn.request.owner
        )
        twin = engine.core.pool.blocks[keys_of(NEXT)[2]]
        twin.refs = 0
        engine.finish(plan)
        assert turn.cache.held(2) is twin and twin.refs == 1
        check_integrity(engine.core)

    def test_a_turn_that_leaves_it_partial_leaves_a_longer_one(self, engine: Engine) -> None:
        engine.run(turn_of("u", [*SAID, 300], num_history=10))
        assert tail_in(engine) is None and tail_in(engine, [*SAID, 300]) is not None

    def test_preempted_its_turn_computes_it(self, engine: Engine) -> None:
        turn = turn_of("u", NEXT, num_history=10, max_tokens=9)
        engine.submit(turn)
        engine.step()
        engine.core.planner.preempt(turn, engine.now_ns)
        check_integrity(engine.core)
        assert engine.step()[0].start >= 8
        check_integrity(engine.core)


class TestBelow:
    def test_it_is_asked_for_as_the_last_of_the_history(self) -> None:
        engine = connected()
        engine.submit(turn_of("u", NEXT, num_history=10))
        assert [stage.keys for stage in engine.stages()] == [[*keys_of(SAID), tail_of(SAID)]]

    def test_a_prompt_without_it_is_asked_for_as_a_whole_then(self) -> None:
        """An earlier attempt, or the same prompt before, may have left full blocks there."""
        engine = connected()
        engine.submit(turn_of("u", NEXT, num_history=10))
        effects = engine.core.on_staged(
            TurnId("u"), 1, staged_blocks(1, keys_of(SAID)), engine.now_ns
        )
        assert of_kind(effects, ReleaseTicket) == [ReleaseTicket(1)]
        assert [stage.keys for stage in of_kind(effects, StageTurn)] == [keys_of(NEXT)]
        answer = staged_blocks(2, keys_of(NEXT))
        assert engine.core.on_staged(TurnId("u"), 1, answer, engine.now_ns) == []
        (row,) = engine.step()
        assert row.start == 12

    def test_not_twice_where_nothing_more_can_be_there(self) -> None:
        engine = connected()
        turn = turn_of("u", [*SAID, 200], num_history=10)
        engine.submit(turn)
        answer = staged_blocks(1, keys_of(SAID))
        assert engine.core.on_staged(TurnId("u"), 1, answer, engine.now_ns) == []
        assert engine.step()[0].start == 8

    def test_a_turn_runs_while_it_comes(self) -> None:
        engine = connected()
        turn = turn_of("u", [*SAID, 200], num_history=10, max_tokens=9)
        engine.submit(turn)
        answer = staged_blocks(1, [*keys_of(SAID), tail_of(SAID)])
        engine.core.on_staged(TurnId("u"), 1, answer, engine.now_ns)
        plan = engine.plan()
        assert plan is not None and plan.rows()[0].start == turn.cache.num_cached == 10
        assert plan.awaited[0] == [list(pages) for pages in zip(
            *(engine.core.pool.pages_of(turn.cache.held(n)) for n in range(3)), strict=True
        )]  # fmt: skip
        check_integrity(engine.core)
        engine.load_all(of_kind(engine.effects, LoadPages))
        engine.finish(plan)
        assert turn.cache.held(2).key is NO_KEY, "it is the turn's own from now on"
        check_integrity(engine.core)

    def test_one_that_does_not_come_is_computed(self) -> None:
        engine = connected()
        turn = turn_of("u", [*SAID, 200], num_history=10)
        engine.submit(turn)
        answer = staged_blocks(1, [*keys_of(SAID), tail_of(SAID)])
        engine.core.on_staged(TurnId("u"), 1, answer, engine.now_ns)
        plan = engine.plan()
        assert plan is not None
        engine.load_all(of_kind(engine.effects, LoadPages), is_good=False)
        engine.finish(plan, failed={0})
        engine.core.on_staged(TurnId("u"), 1, None, engine.now_ns)
        assert engine.step()[0].start == 0
        check_integrity(engine.core)

    def test_what_grows_replaces_it_there(self) -> None:
        engine = connected()
        engine.run(turn_of("t", SAID))
        assert [write.replaces for write in written(engine)] == [NO_KEY] * 3
        engine.run(turn_of("u", [*SAID, 300], num_history=10))
        (longer,) = written(engine)
        assert (longer.key, longer.replaces) == (tail_of([*SAID, 300]), tail_of(SAID))
        engine.run(turn_of("v", [*SAID, 300, *range(400, 404)], num_history=11))
        replaced = {write.key: write.replaces for write in written(engine)}
        full = keys_of([*SAID, 300, 400])[2]
        assert replaced.pop(full) == tail_of([*SAID, 300])
        assert set(replaced.values()) == {NO_KEY}

    @pytest.mark.parametrize("at", ["waiting", "storing", "committing"])
    def test_a_copy_on_its_way_is_not_told_once_a_turn_goes_on_in_it(self, at: str) -> None:
        """Its bytes may have tokens that its key has not."""
        engine = connected()
        engine.run(turn_of("t", SAID))
        if at == "waiting":
            stock_of(engine).clear()
        engine.write()
        if at == "committing":
            engine.store_all()
        turn = turn_of("u", NEXT, num_history=10, max_tokens=9)
        engine.submit(turn)
        engine.step()
        assert turn.cache.num_cached == 10
        effects = engine.store_all()
        commits = of_kind(effects, CommitBlocks)
        keys = {write.key for commit in commits for write in commit.writes}
        assert tail_of(SAID) not in keys
        if at == "storing":
            (returned,) = of_kind(effects, ReturnPages)
            assert len(returned.arena_pages) == NUM_LAYERS
        engine.core.on_committed([*keys, tail_of(SAID)])
        full = engine.core.pool.blocks[keys_of(NEXT)[2]]
        assert full is turn.cache.held(2) and not full.backed
        check_integrity(engine.core)


@pytest.mark.parametrize("said", [-1, EXPIRY_S_MAX + 1])
def test_an_expiry_that_cannot_be_is_refused(said: int) -> None:
    start = TurnStart(
        turn_id=TurnId("t"), frontend_id=FrontendId("f"), model_id=ModelId("m"), num_prompt_tokens=3
    )
    prompt = Prompt(turn_id=TurnId("t"), attempt=1, tokens=pack_ints([1, 2, 3]), expiry_s=said)
    shape = ModelShape(fingerprint="f", num_layers=2, block_tokens=4, vocab_size=9)
    with pytest.raises(InvalidRequest, match="expiry_s"):
        take_in(start, prompt, shape, 0)
    assert take_in(start, replace(prompt, expiry_s=60), shape, 0).request.expiry_s == 60


@pytest.mark.parametrize(("said", "taken"), [(-1, 0), (0, 0), (3, 3), (4, 0), (1 << 62, 0)])
def test_a_number_that_cannot_be_costs_nothing(said: int, taken: int) -> None:
    start = TurnStart(
        turn_id=TurnId("t"), frontend_id=FrontendId("f"), model_id=ModelId("m"), num_prompt_tokens=3
    )
    prompt = Prompt(turn_id=TurnId("t"), attempt=1, tokens=pack_ints([1, 2, 3]), num_history=said)
    shape = ModelShape(fingerprint="f", num_layers=2, block_tokens=4, vocab_size=9)
    turn = take_in(start, prompt, shape, 0)
    assert turn.cache.num_history == taken and turn.has_tail == (taken > 0)
