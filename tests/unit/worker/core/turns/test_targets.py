"""Which turns count as having met their targets."""

import pytest
from prometheus_client import REGISTRY

from services.worker import metrics
from services.worker.core.engine.status import status_of
from services.worker.core.turns.targets import Outcome
from tests.unit.worker.driver import MS, Engine, limited, new_core, new_turn


def test_each_target_counts_where_it_is_known_and_to_the_nanosecond() -> None:
    """The engine's clock goes on by 1 ms a step: tokens at 2, 3 and 4 ms."""
    for late, outcome in ((0, "met"), (1, "missed")):
        engine, turn = Engine(), new_turn("t", [1, 2, 3], sampling=limited(3))
        turn.targets.slo_ttft_ns, turn.targets.slo_tpot_ns = 2 * MS - late, MS - late
        engine.submit(turn)
        engine.step()
        assert engine.core.admission.targets.totals == {("ttft", outcome): 1}
        engine.step()
        assert len(engine.core.admission.targets.totals) == 1, "it is not known yet"
        engine.step()
        assert engine.core.admission.targets.totals == {("ttft", outcome): 1, ("tpot", outcome): 1}


@pytest.mark.parametrize(
    ("own_ns", "house_ns", "counted"),
    [(None, 0, {}), (None, MS, {"missed": 1}), (0, MS, {}), (9 * MS, MS, {"met": 1})],
)
def test_a_turn_s_own_first_target_comes_before_the_house_s(
    own_ns: int | None, house_ns: int, counted: dict[Outcome, int]
) -> None:
    engine = Engine(new_core(slo_ttft_ns=house_ns))
    turn = new_turn("t", [1], sampling=limited(2))
    turn.targets.slo_ttft_ns = own_ns
    engine.run(turn)
    totals = engine.core.admission.targets.totals
    assert totals == {("ttft", outcome): number for outcome, number in counted.items()}


def test_what_an_earlier_attempt_said_is_not_counted_and_one_token_has_no_gap() -> None:
    engine = Engine()
    moved = new_turn("moved", [1, 2, 9], num_generated_before=1, sampling=limited(3))
    alone = new_turn("alone", [1], sampling=limited(1))
    for turn in (moved, alone):
        turn.targets.slo_ttft_ns, turn.targets.slo_tpot_ns = 9 * MS, MS - 1
    engine.run(moved)
    assert engine.core.admission.targets.totals == {("tpot", "missed"): 1}
    engine.run(alone)
    assert engine.core.admission.targets.totals == {("tpot", "missed"): 1, ("ttft", "met"): 1}


def test_counts_reach_the_metrics_once() -> None:
    engine, turn = Engine(), new_turn("t", [1], sampling=limited(2))
    turn.targets.slo_tpot_ns = 1
    engine.run(turn)
    exported = metrics.EngineMetrics("targets")
    for _ in range(2):
        exported.report(status_of(engine.core), engine.core.take_adapter_times())
    labels = {"model": "targets", "target": "tpot", "outcome": "missed"}
    assert REGISTRY.get_sample_value("symphony_turn_targets_total", labels) == 1.0
