"""What a worker tells of its speeds, and how often; where a turn's history may come from."""

from dataclasses import replace

import pytest

from services.worker.core.costs.costs import StepCosts
from services.worker.core.costs.speeds import MS_MIN, REPORT_EVERY, SpeedReports, speeds_of
from services.worker.core.engine_limits import Estimates
from shared.ids import HostId, ModelId
from shared.wire.messages import ModelSpeeds
from tests.unit.worker.core.costs.test_costs import BASE_NS, ROW_NS, TOKEN_NS, taught

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
