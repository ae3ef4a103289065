"""What the engine core makes of history that does not come, of broken rows and of stuck steps."""

import pytest

from services.worker.core.effects import (
    LoadPages,
    ReleaseTicket,
)
from services.worker.core.engine.integrity import check_integrity
from services.worker.core.turns.turn import Turn
from shared.ids import TurnId
from tests.unit.worker.driver import (
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
)

PROMPT = list(range(100, 110))


class TestFailedHistory:
    def _loading(self) -> tuple[Engine, Turn]:
        """A turn whose first two blocks are being loaded for its first step."""
        engine = Engine()
        engine.core.write_behind.connect(1)
        turn = new_turn("t", PROMPT, sampling=limited(7))
        engine.submit(turn)
        (stage,) = engine.stages()
        assert stage.keys == keys_of(PROMPT)
        engine.core.on_staged(turn.request.turn_id, 1, staged_blocks(7, stage.keys), engine.now_ns)
        return engine, turn

    def test_a_row_awaits_the_blocks_that_are_loading(self) -> None:
        engine, _turn = self._loading()
        plan = engine.plan()
        assert plan is not None
        assert plan.rows() == [("t", 8, 10, True)]
        (loads,) = of_kind(engine.effects, LoadPages)
        assert [run.layer for run in loads.loads] == [0, 1]
        assert [run.pool_pages for run in loads.loads] == plan.awaited[0]
        engine.finish(plan)
        assert deltas(engine.effects)[-1].cached_tokens == 8

    def test_the_ticket_is_released_after_the_last_load(self) -> None:
        engine, _turn = self._loading()
        engine.step()
        assert not of_kind(engine.effects, ReleaseTicket)
        engine.load_all(engine.effects)
        assert of_kind(engine.effects, ReleaseTicket) == [ReleaseTicket(7)]

    def test_a_failed_row_is_computed_again_without_asking(self) -> None:
        engine, turn = self._loading()
        plan = engine.plan()
        assert plan is not None
        assert not deltas(engine.finish(plan, failed={0}))
        engine.load_all(engine.effects, is_good=False)
        plan = engine.plan()
        assert plan is not None and not plan.awaited
        assert plan.rows()[0][:2] == (turn.request.turn_id, 0)
        engine.finish(plan)
        assert len(engine.stages()) == 1
        assert engine.core.stager.num_failures == 4

    @pytest.mark.parametrize("is_good", [False, True])
    def test_what_was_computed_instead_is_found_though_the_loads_end_after_the_turn(
        self, is_good: bool
    ) -> None:
        engine, turn = self._loading()
        plan = engine.plan()
        assert plan is not None
        loads = list(engine.effects)
        engine.finish(plan, failed={0})  # they are late
        engine.now_ns += 60_000_000_000
        while turn.request.turn_id in engine.core.turns:
            engine.step()
        assert not of_kind(engine.effects, ReleaseTicket), "the pages are still awaited"
        found = new_turn("next", [*PROMPT, 1, 2])
        engine.submit(found)
        assert len(found.cache.prefix.blocks) == len(keys_of(PROMPT))
        engine.load_all(loads, is_good=is_good)
        assert of_kind(engine.effects, ReleaseTicket) == [ReleaseTicket(7)]
        engine.step()
        check_integrity(engine.core)
        assert deltas(engine.effects)[-1].cached_tokens == 8

    def test_a_block_lost_while_its_turn_waits_is_computed_at_once(self) -> None:
        engine = Engine(new_core(turns_running_max=1))
        engine.core.write_behind.connect(1)
        engine.submit(new_turn("a", PROMPT))
        engine.core.on_staged(
            TurnId("a"), 1, staged_blocks(1, engine.stages()[0].keys), engine.now_ns
        )
        plan = engine.plan()
        assert plan is not None
        engine.submit(new_turn("b", PROMPT))  # waits on the blocks that load for the first
        engine.core.on_cancel(TurnId("a"))
        engine.finish(plan, failed={0})
        engine.load_all(engine.effects, is_good=False)
        rows = engine.step()
        assert [(row.turn_id, row.start) for row in rows] == [("b", 0)]


class TestRowsThatCannotBeComputed:
    def test_end_with_an_error_and_leave_no_block(self) -> None:
        engine = Engine()
        engine.submit(new_turn("bad", PROMPT))
        engine.submit(new_turn("good", [1, 2, 3]))
        plan = engine.plan()
        assert plan is not None
        bad = plan.turn_ids.index(TurnId("bad"))
        effects = engine.finish(plan, broken={bad: "not finite"})
        (delta,) = [delta for delta in deltas(effects) if delta.turn_id == "bad"]
        assert (delta.finish, delta.code, delta.message) == ("error", "poisoned", "not finite")
        assert [(end.turn_id, end.reason) for end in ends(effects)] == [("bad", "error")]
        assert set(engine.core.turns) == {"good"} and not engine.core.pool.blocks

    def test_leave_nothing_below(self) -> None:
        engine = Engine()
        engine.core.write_behind.connect(1)
        engine.core.on_leased(list(range(100)))
        engine.submit(new_turn("t", PROMPT))
        engine.core.on_staged(TurnId("t"), 1, None, engine.now_ns)
        plan = engine.plan()
        assert plan is not None
        engine.finish(plan, broken={0: "not finite"})
        assert engine.write() == []

    def test_leave_to_others_what_those_run_on_as_well(self) -> None:
        engine = Engine()
        engine.run(new_turn("first", PROMPT, sampling=limited(1)))
        shared = set(engine.core.pool.blocks)
        engine.submit(new_turn("good", PROMPT))
        engine.submit(new_turn("bad", [*PROMPT, 1, 2]))
        plan = engine.plan()
        assert plan is not None and shared
        engine.finish(plan, broken={plan.turn_ids.index(TurnId("bad")): "not finite"})
        blocks = engine.core.pool.blocks
        assert shared <= set(blocks) and not any(blocks[key].lost for key in shared)
        assert names(engine.step()) == ["good"]

    def test_of_a_turn_that_was_cancelled_meanwhile_are_told_nobody(self) -> None:
        engine = Engine()
        engine.submit(new_turn("bad", PROMPT))
        plan = engine.plan()
        assert plan is not None
        engine.core.on_cancel(TurnId("bad"))
        effects = engine.finish(plan, broken={0: "not finite"})
        assert deltas(effects) == [] and [end.reason for end in ends(effects)] == ["cancelled"]


def test_a_step_counts_as_stuck_when_it_takes_far_longer_than_steps_do() -> None:
    engine = Engine(new_core(num_blocks=200))
    engine.submit(new_turn("t", list(range(1, 300))))
    plan = engine.plan()
    assert plan is not None
    assert engine.core.step_limit_ns(plan) == 600_000_000_000, "nothing is known yet"
    engine.finish(plan)
    for _ in range(12):
        engine.step()
    plan = engine.plan()
    assert plan is not None
    assert engine.core.step_limit_ns(plan) == 30_000_000_000
    for _ in range(100):
        engine.core.costs.on_step(0, 1, 5_000_000_000)
    assert 60_000_000_000 < engine.core.step_limit_ns(plan) <= 101_000_000_000
    for _ in range(100):
        engine.core.costs.on_step(1, 0, 5_000_000_000)
    assert engine.core.step_limit_ns(plan) <= 101_000_000_000, "short prompts make it forget"
