from dataclasses import replace

import numpy as np
import pytest

from services.worker.core.effects import (
    LoadPages,
    ReportSoon,
)
from services.worker.core.step import Sampled, StepResult
from services.worker.core.turns.turn import Turn, TurnState
from shared.ids import TurnId
from shared.wire.messages import SamplingParams, TokenLogprobs
from tests.unit.worker.driver import (
    BLOCK_TOKENS,
    END_TOKEN,
    MS,
    NUM_LAYERS,
    PLAIN_TOKEN,
    Engine,
    deltas,
    ends,
    keys_of,
    limited,
    names,
    new_core,
    new_turn,
    of_kind,
    staged_blocks,
    take_pages,
)

PROMPT = list(range(100, 110))


class TestEnds:
    def test_at_its_most_tokens(self) -> None:
        said = Engine().run(new_turn("t", PROMPT, sampling=limited(3)))
        assert [(d.index, d.tokens, d.finish) for d in said] == [
            (0, [PLAIN_TOKEN], None),
            (1, [PLAIN_TOKEN], None),
            (2, [PLAIN_TOKEN], "length"),
        ]

    def test_at_an_end_token(self) -> None:
        said = Engine().run(new_turn("t", PROMPT), END_TOKEN)
        assert [d.finish for d in said] == ["stop"]

    def test_not_at_an_end_token_that_is_ignored(self) -> None:
        said = Engine().run(new_turn("t", PROMPT, sampling=limited(2, ignore_eos=True)), END_TOKEN)
        assert [d.finish for d in said] == [None, "length"]

    def test_at_a_stop_token(self) -> None:
        sampling = limited(5, stop_token_ids=[PLAIN_TOKEN])
        assert [d.finish for d in Engine().run(new_turn("t", PROMPT, sampling=sampling))] == [
            "stop"
        ]

    def test_not_before_its_least_tokens(self) -> None:
        said = Engine().run(new_turn("t", PROMPT, sampling=limited(9, min_tokens=2)), END_TOKEN)
        assert [d.finish for d in said] == [None, None, "stop"]

    def test_where_the_context_is_full(self) -> None:
        engine = Engine(new_core(max_model_len=12))
        assert [d.finish for d in engine.run(new_turn("t", PROMPT))] == [None, "length"]

    def test_where_the_pool_is_full(self) -> None:
        engine = Engine(new_core(num_blocks=3))
        assert [d.finish for d in engine.run(new_turn("t", PROMPT))] == [None, "length"]
        assert len(ends(engine.effects)) == 1

    def test_counting_what_earlier_attempts_generated(self) -> None:
        turn = new_turn("t", [*PROMPT, 1, 2], sampling=limited(3), num_generated_before=2)
        said = Engine().run(turn)
        assert [(d.index, d.finish) for d in said] == [(2, "length")]


class TestArrival:
    def test_a_prompt_that_fills_the_context_is_refused(self) -> None:
        engine = Engine(new_core(max_model_len=10))
        effects = engine.submit(new_turn("t", PROMPT))
        assert deltas(effects)[0].code == "context_length_exceeded"
        assert [end.reason for end in ends(effects)] == ["error"]
        assert not engine.core.turns

    def test_a_turn_too_many_is_refused(self) -> None:
        engine = Engine(new_core(turns_running_max=1, turns_waiting_max=1))
        for name in ("a", "b"):
            engine.submit(new_turn(name, PROMPT))
        assert deltas(engine.submit(new_turn("c", PROMPT)))[0].code == "overloaded"

    def test_a_later_attempt_replaces_an_earlier_one(self) -> None:
        engine = Engine()
        engine.submit(new_turn("t", PROMPT))
        effects = engine.submit(new_turn("t", PROMPT, attempt=2))
        assert [(end.attempt, end.reason) for end in ends(effects)] == [(1, "cancelled")]
        assert [ref.attempt for ref in engine.core.refs()] == [2]

    def test_an_earlier_attempt_or_the_same_again_changes_nothing(self) -> None:
        engine = Engine()
        engine.submit(new_turn("t", PROMPT, attempt=2))
        assert engine.submit(new_turn("t", PROMPT, attempt=2)) == []
        assert engine.submit(new_turn("t", PROMPT, attempt=1)) == []

    def test_an_attempt_replaced_in_flight_ends_after_its_step(self) -> None:
        engine = Engine()
        engine.submit(new_turn("t", PROMPT))
        plan = engine.plan()
        assert plan is not None
        assert engine.submit(new_turn("t", PROMPT, attempt=2)) == []
        effects = engine.finish(plan)
        assert not deltas(effects)
        assert [end.attempt for end in ends(effects)] == [1]
        assert names(engine.step()) == ["t"]
        assert deltas(engine.effects)[-1].attempt == 2


class TestCancel:
    def test_a_waiting_turn_ends_at_once(self) -> None:
        engine = Engine()
        engine.submit(new_turn("t", PROMPT))
        assert [end.reason for end in ends(engine.core.on_cancel(TurnId("t")))] == ["cancelled"]
        assert engine.plan() is None

    def test_a_turn_in_flight_ends_after_its_step_and_says_nothing_more(self) -> None:
        engine = Engine()
        engine.submit(new_turn("t", PROMPT))
        plan = engine.plan()
        assert plan is not None
        assert engine.core.on_cancel(TurnId("t")) == []
        effects = engine.finish(plan)
        assert not deltas(effects) and len(ends(effects)) == 1
        assert not engine.core.running

    def test_a_later_attempt_is_spared(self) -> None:
        engine = Engine()
        engine.submit(new_turn("t", PROMPT, attempt=2))
        assert engine.core.on_cancel(TurnId("t"), attempt=1) == []
        assert len(ends(engine.core.on_cancel(TurnId("t"), attempt=2))) == 1

    def test_an_unknown_turn_is_nothing(self) -> None:
        assert Engine().core.on_cancel(TurnId("t")) == []


class TestHistory:
    def test_a_returning_session_computes_only_what_is_new(self) -> None:
        engine = Engine()
        engine.run(new_turn("t", PROMPT, sampling=limited(3)))
        longer = [*PROMPT, PLAIN_TOKEN, PLAIN_TOKEN, PLAIN_TOKEN, 1, 2]
        engine.submit(new_turn("u", longer))
        (row,) = engine.step()
        assert (row.start, row.end) == (12, 15)
        delta = deltas(engine.effects)[-1]
        assert delta.cached_tokens == 12
        assert delta.queue_ns is not None and delta.prefill_ns == MS

    def test_what_turns_ran_on_is_told_by_its_last_block_that_is_below(self) -> None:
        engine = Engine()
        engine.core.write_behind.connect(1)
        assert engine.plan() is None  # asks for pages to write into
        engine.core.on_leased(list(range(8)))

        def run(turn: Turn) -> None:
            engine.submit(turn)
            engine.core.on_staged(turn.request.turn_id, 1, None, engine.now_ns)
            engine.step()

        run(new_turn("t", PROMPT, sampling=limited(1)))
        assert engine.core.history.take_used() == [], "nothing is below yet"
        keys = keys_of(PROMPT[:8])
        engine.write()
        engine.store_all()
        engine.core.on_committed(keys[:1])
        engine.core.write_behind.on_refused(keys[1:])
        run(new_turn("u", [*PROMPT, 1], sampling=limited(1)))
        assert engine.core.history.take_used() == keys[:1]
        assert engine.core.history.take_used() == []

    def test_two_turns_share_the_pages_of_their_common_prefix(self) -> None:
        engine = Engine()
        first, second = new_turn("a", [*PROMPT, 1]), new_turn("b", [*PROMPT, 2])
        engine.submit(first)
        engine.step()
        engine.submit(second)
        engine.step()
        assert first.cache.prefix.blocks[:2] == second.cache.prefix.blocks[:2]
        assert first.cache.held(2) is not second.cache.held(2)
        assert [block.refs for block in first.cache.prefix.blocks] == [2, 2, 1]

    def test_twins_of_one_step_end_up_on_the_same_pages(self) -> None:
        engine = Engine()
        twins = [new_turn("a", PROMPT), new_turn("b", PROMPT)]
        for turn in twins:
            engine.submit(turn)
        engine.step()
        assert twins[0].cache.prefix.blocks[:2] == twins[1].cache.prefix.blocks[:2]
        assert engine.core.pool.num_free == (16 - 2 - 2) * NUM_LAYERS  # two shared, a tail each

    def test_other_tenants_share_nothing(self) -> None:
        engine = Engine()
        engine.run(new_turn("a", PROMPT, sampling=limited(1)))
        stranger = new_turn("b", PROMPT)
        stranger.cache.root = keys_of(PROMPT)[0]
        engine.submit(stranger)
        (row,) = engine.step()
        assert row.start == 0

    def test_one_token_of_a_known_prompt_is_computed(self) -> None:
        engine = Engine()
        engine.run(new_turn("a", PROMPT[:8], sampling=limited(1)))
        engine.submit(new_turn("b", PROMPT[:8]))
        (row,) = engine.step()
        assert (row.start, row.end) == (4, 8)

    def test_prompt_logprobs_need_every_position(self) -> None:
        engine = Engine()
        engine.run(new_turn("a", PROMPT, sampling=limited(1)))
        sampling = SamplingParams(max_tokens=1, prompt_logprobs=0)
        said = engine.run(new_turn("b", PROMPT, sampling=sampling))
        assert said[0].cached_tokens == 0

    def test_a_remnant_makes_way_for_the_block_computed_anew(self) -> None:
        engine = Engine(new_core(num_blocks=4))
        engine.run(new_turn("a", PROMPT, sampling=limited(1)))
        pool = engine.core.pool
        taken = take_pages(pool, pool.num_free + 2)  # both high layers go
        assert taken is not None
        pool.free_pages(np.array(taken, np.int32))
        turn = new_turn("b", PROMPT)
        engine.submit(turn)
        engine.step()
        assert [block.key for block in turn.cache.prefix.blocks] == keys_of(PROMPT)


class TestBatch:
    def test_prompts_share_the_budget_of_a_step(self) -> None:
        engine = Engine(new_core(prefill_tokens_max=8))
        for name in ("a", "b"):
            engine.submit(new_turn(name, [ord(name), *PROMPT]))
        rows = engine.step()
        assert rows == [("a", 0, 8, False)]
        rows = engine.step()
        assert rows == [
            ("a", 8, 11, True),
            ("b", 0, 5, False),
        ]

    def test_decodes_come_before_prompts_and_take_none_of_their_budget(self) -> None:
        engine = Engine(new_core(prefill_tokens_max=11))
        engine.submit(new_turn("a", PROMPT))
        engine.step()
        engine.submit(new_turn("b", [1, *PROMPT]))
        rows = engine.step()
        assert [(row.turn_id, row.end - row.start) for row in rows] == [("a", 1), ("b", 11)]

    def test_turns_are_admitted_by_priority_then_arrival(self) -> None:
        engine = Engine()
        for number, priority in enumerate([0, 1, 0, 2, 1]):
            engine.submit(new_turn(str(number), [number, *PROMPT[:4]], priority=priority))
        assert names(engine.step()) == ["3", "1", "4", "0", "2"]

    def test_no_more_turns_run_than_are_allowed(self) -> None:
        engine = Engine(new_core(turns_running_max=2))
        for name in "abc":
            engine.submit(new_turn(name, [ord(name), *PROMPT]))
        assert names(engine.step()) == ["a", "b"]
        assert names(engine.step()) == ["a", "b"]

    def test_a_turn_waits_until_there_are_pages_for_all_of_it(self) -> None:
        engine = Engine(new_core(num_blocks=5))
        engine.submit(new_turn("a", [1, *PROMPT]))
        engine.submit(new_turn("b", [2, *PROMPT]))
        assert names(engine.step()) == ["a"]

    def test_nothing_to_do_is_no_plan(self) -> None:
        assert Engine().plan() is None


class TestPreemption:
    def _crowd(self) -> tuple[Engine, list[Turn]]:
        """Two decoding turns that soon need one block more than there is."""
        engine = Engine(new_core(num_blocks=7))
        turns = [new_turn(n, [i, *PROMPT[:5]], sampling=limited(12)) for i, n in enumerate("ab")]
        for turn in turns:
            engine.submit(turn)
        return engine, turns

    def test_the_turn_that_came_last_gives_way_and_loses_nothing(self) -> None:
        engine, turns = self._crowd()
        while engine.core.turns:
            engine.step()
        assert engine.core.planner.num_preemptions > 0
        said = deltas(engine.effects)
        for turn in turns:
            indexes = [d.index for d in said if d.turn_id == turn.request.turn_id]
            assert indexes == list(range(12))
        assert [end.turn_id for end in ends(engine.effects)] == ["a", "b"]
        assert [end.reason for end in ends(engine.effects)] == ["length", "length"]

    def test_the_lower_priority_gives_way(self) -> None:
        engine, turns = self._crowd()
        turns[1].request = replace(turns[1].request, priority=1)
        while not engine.core.planner.num_preemptions:
            engine.step()
        assert engine.core.running == [turns[1]]
        assert list(engine.core.waiting) == [turns[0]]

    def test_a_preempted_turn_has_no_row_in_the_step(self) -> None:
        engine, turns = self._crowd()
        turns[1].request = replace(turns[1].request, priority=1)
        while not engine.core.planner.num_preemptions:
            plan = engine.plan()
            assert plan is not None
            assert len(set(plan.turn_ids)) == plan.num_rows
            last = plan
            engine.finish(plan)
        assert last.turn_ids == [turns[1].request.turn_id]

    def test_prompt_logprobs_start_anew(self) -> None:
        engine = Engine(new_core(prefill_tokens_max=4))
        turn = new_turn("a", PROMPT, sampling=SamplingParams(max_tokens=1, prompt_logprobs=0))
        engine.submit(turn)
        for step in range(4):
            plan = engine.plan()
            assert plan is not None
            (row,) = plan.rows()
            chunk = [TokenLogprobs(token=t, logprob=0.0) for t in turn.tokens[row.start : row.end]]
            sampled = Sampled(PLAIN_TOKEN) if row.is_sampled else None
            result = StepResult([sampled], prompt_logprobs={0: chunk})
            engine.effects += engine.core.on_step(result, engine.now_ns)
            if step == 0:
                engine.core.planner.preempt(turn, engine.now_ns)
        (delta,) = deltas(engine.effects)
        assert [entry.token for entry in delta.prompt_logprobs or []] == PROMPT

    def test_what_waiting_turns_hold_cannot_block_the_first(self) -> None:
        engine = Engine(new_core(num_blocks=6))
        engine.run(new_turn("old", PROMPT, sampling=limited(1)))
        large = new_turn("large", list(range(200, 221)))
        engine.submit(new_turn("small", [*PROMPT, 1]))  # runs on two resident blocks
        large.request = replace(large.request, priority=1)
        engine.submit(large)
        assert names(engine.step()) == ["large"]


class TestReports:
    def test_a_turn_tells_how_many_tokens_it_has_of_all_its_attempts(self) -> None:
        engine = Engine()
        engine.submit(new_turn("t", PROMPT, num_generated_before=2))
        assert [ref.num_generated for ref in engine.core.refs()] == [2]
        engine.step()
        assert [ref.num_generated for ref in engine.core.refs()] == [3]

    @pytest.mark.parametrize("was_lost", [True, False])
    def test_the_first_token_after_a_loss_is_reported_at_once(self, was_lost: bool) -> None:
        engine = Engine()
        turn = new_turn("t", PROMPT)
        turn.request = replace(turn.request, was_lost=was_lost)
        engine.submit(turn)
        for _ in range(3):
            engine.step()
        assert len(of_kind(engine.effects, ReportSoon)) == was_lost

    def test_waiting_tokens_are_those_still_to_compute(self) -> None:
        engine = Engine()
        engine.run(new_turn("a", PROMPT, sampling=limited(1)))
        engine.submit(new_turn("b", PROMPT))
        assert engine.core.num_waiting_tokens == len(PROMPT) - 2 * BLOCK_TOKENS
        (waiting,) = engine.core.waiting
        assert waiting.state is TurnState.WAITING and not waiting.cache.prefix.is_asked

    def test_those_of_a_prompt_under_way_are_waited_for_too(self) -> None:
        engine = Engine(new_core(prefill_tokens_max=4))
        engine.submit(new_turn("a", PROMPT))
        engine.step()
        assert engine.core.num_waiting_tokens == len(PROMPT) - 4
        for _ in range(3):
            engine.step()
        assert engine.core.running and engine.core.num_waiting_tokens == 0, "it decodes"

    def test_those_whose_kv_is_staged_or_asked_for_are_not(self) -> None:
        engine = Engine()
        engine.core.write_behind.connect(1)
        turn = new_turn("t", PROMPT, num_history=5)
        engine.submit(turn)
        assert turn.cache.prefix.is_asked and engine.core.num_waiting_tokens == len(PROMPT) - 5
        staged = staged_blocks(7, keys_of(PROMPT)[:2])
        engine.core.on_staged(turn.request.turn_id, turn.request.attempt, staged, engine.now_ns)
        assert engine.core.num_waiting_tokens == len(PROMPT) - 2 * BLOCK_TOKENS

    def test_loads_are_named_with_their_source(self) -> None:
        engine = Engine()
        engine.core.write_behind.connect(1)
        engine.submit(new_turn("t", PROMPT))
        staged = staged_blocks(7, engine.stages()[0].keys)
        engine.core.on_staged(TurnId("t"), 1, staged, engine.now_ns)
        engine.plan()
        (effect,) = of_kind(engine.effects, LoadPages)
        loads = [(run.layer, run.arena_pages) for run in effect.loads]
        assert loads == [(0, [0, 1]), (1, [100, 101])], "layer 0 of every block first"
