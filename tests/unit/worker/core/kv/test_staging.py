from typing import Any

import numpy as np
import pytest

from services.worker.core.effects import (
    Effect,
    LoadPages,
    Prefetched,
    ReleaseTicket,
    StageSession,
)
from services.worker.core.kv import staging
from services.worker.core.kv.expecting import Expected
from shared.blocks import BlockKey
from shared.ids import DEFAULT_TENANT, SessionId, TenantId, TurnId
from shared.owners import NO_OWNER
from tests.unit.worker.driver import (
    MS,
    NUM_LAYERS,
    Engine,
    announce,
    deltas,
    keys_of,
    new_core,
    new_turn,
    of_kind,
    pages_of,
    staged_blocks,
    take_pages,
)

PROMPT = list(range(100, 113))  # three blocks and a token
KEYS = keys_of(PROMPT)
T = TurnId("t")
LATER_NS = 10**12


@pytest.fixture
def engine() -> Engine:
    engine = Engine()
    engine.core.write_behind.connect(1)
    return engine


def started(effects: list[Effect]) -> list[tuple[int, int]]:
    """Layer and arena page of each load, in order."""
    runs = [run for effect in of_kind(effects, LoadPages) for run in effect.loads]
    return [(run.layer, page) for run in runs for page in run.arena_pages]


def expect(
    engine: Engine, ticket: int, keys: list[BlockKey], until_ns: int = LATER_NS, **fields: Any
) -> None:
    (ask,) = announce(engine, SessionId(f"s{ticket}"), expires_at_ns=until_ns, **fields)
    assert isinstance(ask, StageSession)
    staged = staged_blocks(ticket, keys)
    engine.effects += engine.core.on_session_staged(ask.number, staged, engine.now_ns)


class TestAsking:
    def test_the_kvstore_is_asked_for_what_is_not_resident(self, engine: Engine) -> None:
        turn = new_turn("t", PROMPT)
        engine.submit(turn)
        assert [stage.keys for stage in engine.stages()] == [KEYS]
        assert turn.cache.prefix.is_asked
        assert engine.plan() is None
        assert engine.core.next_deadline_ns() == turn.cache.prefix.answer_due_at_ns > engine.now_ns

    def test_without_a_kvstore_nothing_is_asked(self) -> None:
        engine = Engine()
        engine.submit(new_turn("t", PROMPT))
        assert not engine.stages()
        assert announce(engine, SessionId("s")) == []

    def test_a_kvstore_that_could_not_be_asked_means_computing(self, engine: Engine) -> None:
        engine.submit(new_turn("t", PROMPT))
        assert engine.core.on_staged(T, 1, None, engine.now_ns) == []
        assert engine.step()[0].start == 0

    def test_an_empty_answer_is_released(self, engine: Engine) -> None:
        engine.submit(new_turn("t", PROMPT))
        assert engine.core.on_staged(T, 1, staged_blocks(3, []), 0) == [ReleaseTicket(3)]
        assert engine.step()[0].start == 0

    def test_a_fetch_slower_than_computing_is_let_go(self, engine: Engine) -> None:
        engine.core.estimates.prefill_tokens_per_s = 1e9
        engine.submit(new_turn("t", PROMPT))
        staged = staged_blocks(3, KEYS)
        assert engine.core.on_staged(T, 1, staged, engine.now_ns) == [ReleaseTicket(3)]
        assert engine.step()[0].start == 0


class TestLateAnswers:
    def test_after_the_deadline_the_turn_computes_and_the_answer_is_released(
        self, engine: Engine
    ) -> None:
        turn = new_turn("t", PROMPT)
        engine.submit(turn)
        engine.now_ns = turn.cache.prefix.answer_due_at_ns
        assert engine.step()[0].start == 0
        staged = staged_blocks(3, KEYS)
        assert engine.core.on_staged(T, 1, staged, engine.now_ns) == [ReleaseTicket(3)]

    def test_for_a_turn_that_ended_or_was_replaced(self, engine: Engine) -> None:
        assert engine.core.on_staged(T, 1, staged_blocks(3, KEYS), 0) == [ReleaseTicket(3)]
        engine.submit(new_turn("t", PROMPT, attempt=2))
        assert engine.core.on_staged(T, 1, staged_blocks(4, KEYS), 0) == [ReleaseTicket(4)]

    def test_to_a_question_asked_before_a_preemption(self, engine: Engine) -> None:
        engine.core.planner.prefill_tokens_max = 4
        turn = new_turn("t", PROMPT)
        engine.submit(turn)
        engine.now_ns = turn.cache.prefix.answer_due_at_ns
        engine.step()
        engine.core.planner.preempt(turn, engine.now_ns)  # one block stays: the next is asked for
        assert turn.cache.prefix.is_asked and turn.cache.prefix.staged_from == 1
        stale = staged_blocks(3, KEYS)
        assert engine.core.on_staged(T, 1, stale, engine.now_ns) == [ReleaseTicket(3)]
        assert engine.core.on_staged(T, 1, staged_blocks(4, KEYS[1:]), engine.now_ns) == []
        engine.plan()
        assert [block.key for block in turn.cache.prefix.blocks] == KEYS

    def test_for_a_turn_whose_resident_blocks_made_room_meanwhile(self, engine: Engine) -> None:
        engine.core = new_core(num_blocks=6)
        engine.run(new_turn("old", PROMPT[:9]))
        engine.core.write_behind.connect(1)
        waiting = new_turn("t", PROMPT)
        engine.submit(waiting)
        assert waiting.cache.prefix.staged_from == 2
        engine.core.write_behind.is_connected = False
        large = new_turn("large", list(range(200, 220)), priority=1)
        engine.submit(large)
        engine.step()
        assert large in engine.core.running and not waiting.cache.num_blocks
        engine.core.on_staged(T, 1, staged_blocks(3, KEYS[2:]), engine.now_ns)
        engine.core.on_cancel(TurnId("large"))
        engine.plan()
        assert waiting in engine.core.running
        assert waiting.num_computed == 0 and not waiting.cache.prefix.blocks


def prefetch(engine: Engine, ticket: int, keys: list[BlockKey], priority: int) -> None:
    expected = Expected(
        tenant=DEFAULT_TENANT,
        session_id=SessionId(f"s{ticket}"),
        priority=priority,
        expires_at_ns=LATER_NS,
    )
    staged, name = staged_blocks(ticket, keys), (expected.owner, "")
    assert engine.core.stager.expect(staged, name, NO_OWNER, expected, engine.now_ns) == []


class TestPrefetch:
    def test_layer_0_of_every_session_comes_before_layer_1_of_any(self, engine: Engine) -> None:
        other = keys_of(list(range(300, 304)))
        prefetch(engine, 1, KEYS[:2], priority=0)
        prefetch(engine, 2, other, priority=1)
        effects = engine.core.stager.pump(engine.now_ns)
        assert [layer for layer, _ in started(effects)] == [0, 0, 0, 1, 1, 1]
        keys = [block.key for block in engine.core.pool.blocks.values()]
        assert keys == [*other, *KEYS[:2]], "the higher priority first"

    def test_who_is_expected_with_more_urgency_is_whole_before_others_begin(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = keys_of(list(range(300, 304)))
        prefetch(engine, 1, KEYS[:2], priority=1)
        prefetch(engine, 2, other, priority=2)
        num_more = NUM_LAYERS + 1  # pages that may be in flight
        monkeypatch.setattr(staging, "PREFETCH_LOADS_MAX", num_more)
        engine.core.stager.pump(engine.now_ns)
        pool = engine.core.pool
        present = {key: block.num_present for key, block in pool.blocks.items()}
        assert present == {other[0]: NUM_LAYERS, KEYS[0]: 1}

    def test_an_expected_session_computes_only_what_is_new(self, engine: Engine) -> None:
        expect(engine, 1, KEYS)
        engine.load_all(engine.effects)
        assert of_kind(engine.effects, ReleaseTicket) == [ReleaseTicket(1)]
        engine.submit(new_turn("t", PROMPT))
        (row,) = engine.step()
        assert row.start == 12
        assert deltas(engine.effects)[-1].cached_tokens == 12
        assert not engine.stages()

    def test_a_turn_runs_on_blocks_that_are_still_coming(self, engine: Engine) -> None:
        expect(engine, 1, KEYS)
        engine.submit(new_turn("t", PROMPT))
        plan = engine.plan()
        assert plan is not None and plan.rows()[0].start == 12
        assert list(map(len, plan.awaited[0])) == [3, 3]

    def test_pages_of_running_turns_are_never_taken(self) -> None:
        engine = Engine(new_core(num_blocks=4))
        turn = new_turn("t", PROMPT)
        engine.submit(turn)
        engine.step()
        engine.core.write_behind.connect(1)
        pages = pages_of(turn, engine.core.pool, 4)
        expect(engine, 1, keys_of(list(range(300, 308))))
        assert not started(engine.effects)
        assert pages_of(turn, engine.core.pool, 4) == pages

    def test_it_takes_clean_pages_that_nobody_expects(self) -> None:
        engine = Engine(new_core(num_blocks=4))
        engine.run(new_turn("t", PROMPT))
        engine.core.write_behind.connect(1)
        expect(engine, 1, keys_of(list(range(300, 308))))
        assert len(started(engine.effects)) == 2 * NUM_LAYERS

    def test_expected_sessions_do_not_take_from_one_another(self) -> None:
        engine = Engine(new_core(num_blocks=5, eviction="lru"))
        engine.core.write_behind.connect(1)
        expect(engine, 1, KEYS)
        engine.load_all(engine.effects)
        num_started = len(started(engine.effects))
        assert num_started == len(KEYS) * NUM_LAYERS
        take_pages(engine.core.pool, 2 * NUM_LAYERS)  # the rest is somebody's
        expect(engine, 2, keys_of(list(range(300, 308))), tenant=TenantId("other"))
        assert len(started(engine.effects)) == num_started

    def test_by_layer_all_that_are_expected_have_their_low_layers(self) -> None:
        """Two sessions of three blocks, and seven pages."""
        engine = Engine(new_core(num_blocks=8))
        pool = engine.core.pool
        engine.core.write_behind.connect(1)
        other = keys_of(list(range(300, 312)))
        expect(engine, 1, KEYS)
        engine.load_all(engine.effects)
        take_pages(pool, pool.num_free - 1)  # somebody's
        engine.effects.clear()
        expect(engine, 2, other, tenant=TenantId("other"))
        assert [layer for layer, _ in started(engine.effects)] == [0, 0, 0]
        engine.load_all(engine.effects)
        present = {key: pool.blocks[key].num_present for key in (*KEYS, *other)}
        assert present == {KEYS[0]: 2, **dict.fromkeys([*KEYS[1:], *other], 1)}
        assert not engine.core.stager.num_loading, "nothing of an equal layer is taken"
        assert len(pool.take_idle(engine.now_ns, 9, 0)) == 1
        assert pool.take_idle(engine.now_ns, 9, 0) == []

    def test_what_was_deferred_comes_with_the_turn(self) -> None:
        engine = Engine(new_core(num_blocks=8))
        engine.core.write_behind.connect(1)
        expect(engine, 1, KEYS)
        engine.load_all(engine.effects)
        assert of_kind(engine.effects, ReleaseTicket) == [ReleaseTicket(1)]
        pool = engine.core.pool
        pages = pool.take_idle(engine.now_ns, pool.num_free + 2, 0)
        pool.free_pages(np.array(pages, np.int32))
        engine.submit(new_turn("t", PROMPT))
        assert [stage.keys for stage in engine.stages()] == [KEYS[1:]]
        engine.core.on_staged(T, 1, staged_blocks(2, KEYS[1:]), engine.now_ns)
        before = len(engine.effects)
        assert engine.step()[0].start == 12
        assert [layer for layer, _ in started(engine.effects[before:])] == [1, 1]

    def test_prefetches_without_room_expire_and_let_their_ticket_go(self, engine: Engine) -> None:
        engine.core = new_core(num_blocks=4)
        turn = new_turn("t", PROMPT)
        engine.submit(turn)
        engine.step()
        engine.core.write_behind.connect(1)
        for ticket, until_ns in ((1, 500 * MS), (2, 300 * MS)):
            keys = keys_of([ticket, *PROMPT])
            expect(engine, ticket, keys, until_ns, tenant=TenantId(f"t{ticket}"))
        assert engine.core.next_deadline_ns() == 300 * MS
        assert engine.core.stager.pump(300 * MS) == [ReleaseTicket(2)]
        assert engine.core.next_deadline_ns() == 500 * MS
        assert engine.core.stager.pump(500 * MS) == [ReleaseTicket(1)]
        assert engine.core.stager.next_expiry_ns is None

    def test_a_prefetched_session_gives_its_high_layers_first(self, engine: Engine) -> None:
        engine.core = new_core(num_blocks=5)
        engine.core.write_behind.connect(1)
        expect(engine, 1, KEYS)
        engine.load_all(engine.effects)
        pool = engine.core.pool
        take_pages(pool, 2 * NUM_LAYERS + 3)
        pages = [pool.pages_of(pool.blocks[key]) for key in KEYS]
        assert [[page >= 0 for page in each] for each in pages] == [[True, False]] * 3

    def test_a_load_that_fails_leaves_no_block_behind(self, engine: Engine) -> None:
        expect(engine, 1, KEYS)
        engine.load_all(engine.effects, is_good=False)
        assert not engine.core.pool.blocks
        assert engine.core.pool.num_free == engine.core.pool.num_pages
        assert of_kind(engine.effects, ReleaseTicket) == [ReleaseTicket(1)]

    def test_what_came_of_a_traced_one_is_told_once(self, engine: Engine) -> None:
        engine.now_ns = 5 * MS
        expect(engine, 1, KEYS, trace="x")
        assert not of_kind(engine.effects, Prefetched), "it is on its way"
        engine.load_all(engine.effects)
        expect(engine, 2, [], trace="y")
        (ask,) = announce(engine, SessionId("away"), trace="z")
        assert isinstance(ask, StageSession) and ask.trace == "z"
        engine.effects += engine.core.on_session_staged(ask.number, None, engine.now_ns)
        assert of_kind(engine.effects, Prefetched) == [
            Prefetched("x", 5 * MS, 3, 3),
            Prefetched("y", 5 * MS, 0, 0),
            Prefetched("z", 5 * MS, 0, 0),
        ]

    def test_a_traced_one_without_room_or_whose_loads_fail_has_nothing_here(
        self, engine: Engine
    ) -> None:
        expect(engine, 1, KEYS, trace="x")
        engine.load_all(engine.effects, is_good=False)
        engine.core = new_core(num_blocks=1)  # of which hints may hold a part
        engine.core.write_behind.connect(1)
        expect(engine, 2, KEYS, trace="y")
        assert of_kind(engine.effects, Prefetched) == [
            Prefetched("x", engine.now_ns, 3, 0),
            Prefetched("y", engine.now_ns, 3, 0),
        ]

    def test_an_advisory_asks_for_the_session(self, engine: Engine) -> None:
        effects = announce(engine, SessionId("s"), priority=2)
        assert effects == [StageSession(1, DEFAULT_TENANT, SessionId("s"), 2)]

    def test_a_session_of_which_nothing_is_stored_is_released(self, engine: Engine) -> None:
        expect(engine, 1, [])
        assert engine.effects == [ReleaseTicket(1)]
