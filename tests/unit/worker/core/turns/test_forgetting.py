"""A session is deleted: whatever of it is here, in whatever state, nobody finds it afterwards, and
whoever uses it now goes on.
"""

from dataclasses import replace
from functools import partial

import pytest

from services.worker.core.effects import (
    CommitBlocks,
    LoadPages,
    ReleaseTicket,
    ReturnPages,
    StageSession,
    StoreBlocks,
)
from services.worker.core.engine.integrity import check_integrity
from services.worker.core.kv.residency import Chain
from services.worker.core.step import StepPlan
from services.worker.core.turns.turn import Turn
from shared.blocks import BlockKey, child_key
from shared.ids import DEFAULT_TENANT, SessionId, TurnId
from shared.owners import owner_key
from shared.wire.messages import SamplingParams
from tests.unit.worker.driver import (
    NUM_LAYERS,
    Engine,
    announce,
    deltas,
    ends,
    keys_of,
    new_core,
    of_kind,
    pages_of,
    staged_blocks,
)
from tests.unit.worker.driver import new_turn as turn_of

PROMPT = list(range(100, 109))  # two blocks and a token
KEYS = keys_of(PROMPT)
TAIL = child_key(KEYS[-1], PROMPT[8:])
ONCE = SamplingParams(max_tokens=1)
S = owner_key(DEFAULT_TENANT, SessionId("s"))
new_turn = partial(turn_of, session_id=SessionId("s"))
OTHER = SessionId("other")


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


def forget(engine: Engine, keys: list[BlockKey] | None = None) -> int:
    """Delete session "s"; how many of its blocks were here."""
    num_blocks, effects = engine.core.on_forget(S, keys or [])
    engine.effects += effects
    check_integrity(engine.core)
    return num_blocks


def of_other(turn: Turn) -> Turn:
    """The same prompt from another session."""
    turn.request = replace(turn.request, session_id=OTHER)
    turn.cache.owner = turn.request.owner
    turn.cache.prefix = Chain(turn.cache.owner)
    return turn


def assert_nothing_left(engine: Engine) -> None:
    pool = engine.core.pool
    assert not pool.blocks and not pool.forgotten
    assert pool.num_free == pool.num_pages
    assert engine.core.write_behind.num_unwritten == 0


class TestIdle:
    def test_blocks_of_earlier_prompts_go_too(self, engine: Engine) -> None:
        engine.run(new_turn("t", PROMPT, sampling=ONCE))
        engine.run(new_turn("u", list(range(200, 209)), sampling=ONCE))
        assert forget(engine) == 6
        assert_nothing_left(engine)
        assert engine.run(new_turn("v", PROMPT, sampling=ONCE))[0].cached_tokens == 0

    def test_a_record_names_blocks_that_others_made(self, engine: Engine) -> None:
        engine.run(of_other(new_turn("t", PROMPT, sampling=ONCE)))
        assert forget(engine) == 0 and len(engine.core.pool.blocks) == 3
        assert forget(engine, [*KEYS, TAIL]) == 3
        assert_nothing_left(engine)

    def test_a_block_on_its_way_below_is_given_up(self, engine: Engine) -> None:
        lease(engine, 4)
        engine.run(new_turn("t", PROMPT, sampling=ONCE))
        engine.write()
        assert of_kind(engine.store_all(), CommitBlocks)
        assert forget(engine) == 3
        assert_nothing_left(engine)
        engine.core.on_committed([*KEYS, TAIL])
        check_integrity(engine.core)

    def test_a_write_under_way_is_not_committed(self, engine: Engine) -> None:
        engine.run(new_turn("t", PROMPT, sampling=ONCE))
        lease(engine, 2)
        assert [write.owner for write in engine.write()] == [S, S]
        forget(engine)
        effects = engine.store_all()
        assert not of_kind(effects, CommitBlocks)
        (returned,) = of_kind(effects, ReturnPages)
        assert len(returned.arena_pages) == 2 * NUM_LAYERS
        assert_nothing_left(engine)


class TestRunning:
    def test_its_turn_goes_on_and_leaves_nothing(self, engine: Engine) -> None:
        lease(engine, 8)
        engine.submit(new_turn("t", PROMPT, sampling=SamplingParams(max_tokens=12)))
        engine.step()
        engine.step()
        assert len(engine.core.pool.blocks) == 2
        engine.store_all()
        engine.core.on_committed(KEYS)
        before = len(of_kind(engine.effects, StoreBlocks))
        assert forget(engine) == 2
        assert not engine.core.pool.blocks
        while engine.core.turns:
            engine.step()
            assert not engine.core.pool.blocks, "what it computes now is found"
        assert len(of_kind(engine.effects, StoreBlocks)) == before, "or goes below"
        assert sum(len(delta.tokens) for delta in deltas(engine.effects)) == 12
        assert ends(engine.effects)[-1].reason == "length"
        assert_nothing_left(engine)

    def test_a_step_under_way_is_not_committed(self, engine: Engine) -> None:
        lease(engine, 4)
        engine.submit(new_turn("t", PROMPT, sampling=ONCE))
        plan = planned(engine)
        forget(engine)
        engine.finish(plan)
        assert engine.write() == []
        assert_nothing_left(engine)

    def test_nor_one_whose_turn_was_cancelled_in_it(self, engine: Engine) -> None:
        lease(engine, 4)
        engine.submit(new_turn("t", PROMPT))
        plan = planned(engine)
        engine.core.on_cancel(TurnId("t"))
        forget(engine)
        engine.finish(plan)
        assert engine.write() == []
        assert_nothing_left(engine)

    def test_another_sessions_turn_keeps_the_pages_it_runs_on(self, engine: Engine) -> None:
        engine.run(new_turn("t", PROMPT, sampling=ONCE))
        other = of_other(new_turn("u", PROMPT, sampling=SamplingParams(max_tokens=3)))
        engine.submit(other)
        engine.step()
        assert other.cache.num_cached == 8
        pages = pages_of(other, engine.core.pool, 2)
        assert forget(engine) == 3
        assert not engine.core.pool.blocks
        engine.step()
        assert pages_of(other, engine.core.pool, 2) == pages and other.cache.num_cached == 8
        engine.step()
        assert_nothing_left(engine)

    def test_a_turn_that_is_preempted_computes_anew_and_asks_nobody(self, engine: Engine) -> None:
        turn = new_turn("t", PROMPT)
        engine.submit(turn)
        engine.step()
        forget(engine)
        num_stages = len(engine.stages())
        engine.core.planner.preempt(turn, engine.now_ns)
        assert not turn.cache.num_blocks and len(engine.stages()) == num_stages
        (row,) = engine.step()
        assert row.start == 0 and not engine.core.pool.blocks

    def test_a_turn_that_came_later_but_began_before_is_private(self, engine: Engine) -> None:
        lease(engine, 4)
        turn = new_turn("t", PROMPT, sampling=ONCE)
        turn.cache.is_private = True
        engine.run(turn)
        assert engine.write() == [] and not engine.stages()
        assert_nothing_left(engine)


class TestComing:
    @pytest.fixture
    def engine(self) -> Engine:
        engine = Engine()
        engine.core.write_behind.connect(1)
        return engine

    def expect(self, engine: Engine, *, runs_elsewhere: bool = False) -> None:
        """Advise the session; its two blocks are staged under ticket 1."""
        running = {"running": TurnId("t"), "maker": S, "keys": tuple(KEYS)}
        name, told = (SessionId("#turn-t"), running) if runs_elsewhere else (SessionId("s"), {})
        (ask,) = announce(engine, name, **told)
        assert isinstance(ask, StageSession)
        staged = staged_blocks(1, KEYS)
        engine.effects += engine.core.on_session_staged(ask.number, staged, engine.now_ns)

    def test_an_answer_for_its_waiting_turn_is_let_go(self, engine: Engine) -> None:
        turn = new_turn("t", PROMPT)
        engine.submit(turn)
        assert turn.cache.prefix.is_asked
        forget(engine)
        answer = engine.core.on_staged(TurnId("t"), 1, staged_blocks(1, KEYS), engine.now_ns)
        assert answer == [ReleaseTicket(1)]
        (row,) = engine.step()
        assert row.start == 0

    def test_what_is_staged_for_it_is_let_go(self, engine: Engine) -> None:
        engine.submit(new_turn("t", PROMPT))
        engine.core.on_staged(TurnId("t"), 1, staged_blocks(1, KEYS), engine.now_ns)
        forget(engine)
        assert engine.effects[-1] == ReleaseTicket(1)
        (row,) = engine.step()
        assert row.start == 0

    def test_a_running_turn_gets_what_it_waits_for(self, engine: Engine) -> None:
        engine.submit(new_turn("t", PROMPT, sampling=ONCE))
        engine.core.on_staged(TurnId("t"), 1, staged_blocks(1, KEYS), engine.now_ns)
        plan = planned(engine)
        assert list(map(len, plan.awaited[0])) == [2, 2]
        assert forget(engine) == 2
        engine.load_all(engine.effects)
        engine.finish(plan)
        assert deltas(engine.effects)[-1].cached_tokens == 8
        assert_nothing_left(engine)

    def test_a_load_that_fails_is_made_up_for(self, engine: Engine) -> None:
        engine.submit(new_turn("t", PROMPT, sampling=ONCE))
        engine.core.on_staged(TurnId("t"), 1, staged_blocks(1, KEYS), engine.now_ns)
        plan = planned(engine)
        forget(engine)
        engine.load_all(engine.effects, is_good=False)
        engine.finish(plan, failed={0})
        engine.step()
        assert ends(engine.effects)[-1].reason == "length"
        assert_nothing_left(engine)

    def test_an_expected_session_is_expected_no_more(self, engine: Engine) -> None:
        self.expect(engine)
        assert len(of_kind(engine.effects, LoadPages)) == 1
        forget(engine)
        assert not engine.core.pool.blocks
        engine.load_all(engine.effects)
        assert engine.effects[-1] == ReleaseTicket(1)
        assert_nothing_left(engine)

    def test_nor_one_of_which_the_kvstore_has_not_answered(self, engine: Engine) -> None:
        (ask,) = announce(engine, SessionId("s"))
        assert isinstance(ask, StageSession)
        forget(engine)
        staged = staged_blocks(1, KEYS)
        answer = engine.core.on_session_staged(ask.number, staged, engine.now_ns)
        assert answer == [ReleaseTicket(1)] and not engine.core.pool.blocks

    @pytest.mark.parametrize("when", ["asked", "loading", "here"])
    def test_what_is_prefetched_of_its_turn_that_runs_elsewhere_is_not_found(
        self, engine: Engine, when: str
    ) -> None:
        running = {"running": TurnId("t"), "maker": S, "keys": tuple(KEYS)}
        (ask,) = announce(engine, SessionId("#turn-t"), **running)
        assert isinstance(ask, StageSession)
        staged = staged_blocks(1, KEYS)
        if when != "asked":
            engine.effects += engine.core.on_session_staged(ask.number, staged, engine.now_ns)
        if when == "here":
            engine.load_all(engine.effects)
            assert engine.core.pool.blocks
        forget(engine, keys=[])
        if when == "asked":
            answer = engine.core.on_session_staged(ask.number, staged, engine.now_ns)
            assert answer == [ReleaseTicket(1)]
        if when == "loading":
            engine.load_all(engine.effects)
        assert not engine.core.pool.blocks

    @pytest.mark.parametrize("runs_elsewhere", [False, True])
    def test_one_without_room_lets_its_ticket_go(self, runs_elsewhere: bool) -> None:
        engine = Engine(new_core(num_blocks=3))
        other = of_other(new_turn("u", PROMPT))
        engine.submit(other)
        engine.step()
        engine.core.write_behind.connect(1)
        self.expect(engine, runs_elsewhere=runs_elsewhere)
        assert not of_kind(engine.effects, LoadPages)
        forget(engine)
        assert ReleaseTicket(1) in engine.effects[-2:]
        assert engine.core.stager.next_expiry_ns is None
