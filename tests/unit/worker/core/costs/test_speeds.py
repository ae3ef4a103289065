"""What a worker tells of its speeds, and how often; where a turn's history may come from."""

from dataclasses import replace

import pytest

from services.worker.core.costs.costs import StepCosts
from services.worker.core.costs.speeds import MS_MIN, REPORT_EVERY, SpeedReports, speeds_of
from services.worker.core.effects import ReleaseTicket, StageTurn, TrimTicket
from services.worker.core.limits import Estimates
from services.worker.core.turns.intake import ModelShape, take_in
from shared.ids import FrontendId, HostId, ModelId, TurnId
from shared.messages import KvFrom, ModelSpeeds, Prompt, TurnStart, pack_ints
from tests.unit.worker.core.costs.test_costs import BASE_NS, ROW_NS, TOKEN_NS, taught
from tests.unit.worker.core.kv.test_fetching import PROMPT, answer
from tests.unit.worker.driver import Engine, new_turn, of_kind

MODEL = ModelId("m")
TOLD = ModelSpeeds(model_id=MODEL, token_ms=1, step_ms=10, peer_bytes_per_s={HostId("a"): 1e9})


def test_steps_are_told_as_a_base_and_what_rows_and_tokens_add() -> None:
    told = speeds_of(MODEL, taught(), Estimates(), 1000)
    expected = (TOKEN_NS / 1e6, BASE_NS / 1e6, ROW_NS / 1e6)
    assert (told.token_ms, told.step_ms, told.row_ms) == pytest.approx(expected, rel=1e-2)
    assert told.block_bytes == 1000


def test_of_batches_that_were_all_alike_both_figures_are_told_and_fit() -> None:
    costs = StepCosts()
    for _ in range(20):
        costs.on_step(0, 8, BASE_NS)
    costs.on_step(300, 8, 3 * BASE_NS)
    told = speeds_of(MODEL, costs, Estimates(), 1000)
    assert told.row_ms > 0
    assert told.step_ms + 8 * told.row_ms == pytest.approx(BASE_NS / 1e6, rel=1e-3)


def test_rows_that_add_nothing_are_not_told_as_unknown() -> None:
    costs = taught()
    for number in range(1000):
        costs.on_step(0, 5 + number % 7, BASE_NS)
    told = speeds_of(MODEL, costs, Estimates(), 1000)
    assert told.row_ms == MS_MIN and told.step_ms == pytest.approx(BASE_NS / 1e6, rel=1e-2)


def test_steps_that_nobody_has_seen_are_not_told() -> None:
    told = speeds_of(MODEL, StepCosts(), Estimates(load_bytes_per_s=3e9), 1000)
    assert (told.token_ms, told.step_ms, told.row_ms) == (0, 0, 0)
    assert told.load_bytes_per_s == 3e9


def test_speeds_are_told_when_they_changed_much_and_now_and_then() -> None:
    telling = SpeedReports()
    told = [telling.next([replace(TOLD, token_ms=1 + number / 500)]) for number in range(40)]
    assert [number for number, speeds in enumerate(told) if speeds] == [0, 16, 32]
    assert REPORT_EVERY == 16


@pytest.mark.parametrize(
    "changed",
    [
        replace(TOLD, token_ms=1.2),
        replace(TOLD, step_ms=8),
        replace(TOLD, row_ms=0.1),
        replace(TOLD, peer_bytes_per_s={HostId("a"): 5e8}),
        replace(TOLD, peer_bytes_per_s={HostId("b"): 1e9}),
        replace(TOLD, model_id=ModelId("n")),
    ],
)
def test_much_is_a_tenth(changed: ModelSpeeds) -> None:
    telling = SpeedReports()
    telling.next([TOLD])
    assert telling.next([changed]) == [changed]
    assert telling.next([]) == [], "of no model there is nothing to tell"


def looked_up(kv_from: KvFrom) -> Engine:
    engine = Engine()
    engine.core.writeback.connect(1)
    turn = new_turn("t", PROMPT)
    turn.request = replace(turn.request, kv_from=kv_from)
    engine.submit(turn)
    return engine


def test_a_turn_that_may_use_the_pool_alone_asks_nobody() -> None:
    engine = looked_up("pool")
    assert not of_kind(engine.effects, StageTurn)
    plan = engine.plan()
    assert plan is not None and plan.rows()[0].start == 0


def test_what_is_in_the_pool_it_takes() -> None:
    engine = looked_up("pool")
    engine.step()
    turn = new_turn("u", PROMPT)
    turn.request = replace(turn.request, kv_from="pool")
    engine.submit(turn)
    assert turn.num_computed == 40


def test_one_that_may_use_the_host_s_memory_leaves_what_is_on_its_disk() -> None:
    engine = looked_up("arena")
    assert len(of_kind(engine.effects, StageTurn)) == 1
    answer(engine, [1, 1], num_from_disk=6, num_here=7)
    assert of_kind(engine.effects, TrimTicket) == [TrimTicket(7, 7)]
    plan = engine.plan()
    assert plan is not None and plan.rows()[0].start == 28


def test_if_all_is_on_disk_it_computes_all() -> None:
    engine = looked_up("arena")
    answer(engine, [1, 1])
    assert of_kind(engine.effects, ReleaseTicket) == [ReleaseTicket(7)]


@pytest.mark.parametrize(("kv_from", "asks_others"), [("any", True), ("arena", False)])
def test_other_hosts_are_below_the_host_s_memory(kv_from: KvFrom, *, asks_others: bool) -> None:
    start = TurnStart(
        turn_id=TurnId("t"), frontend_id=FrontendId("f"), model_id=MODEL, num_prompt_tokens=2,
        kv_at={HostId("a"): 3}, kv_from=kv_from,
    )  # fmt: skip
    shape = ModelShape(fingerprint="f", num_layers=2, block_tokens=4, vocab_size=10)
    prompt = Prompt(turn_id=TurnId("t"), attempt=1, tokens=pack_ints([1, 2]))
    turn = take_in(start, prompt, shape, 0)
    assert turn.request.kv_from == kv_from and bool(turn.request.kv_at) is asks_others
