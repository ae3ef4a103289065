"""The figure of live sub-clusters: its goodput, and what it counts as a change."""

import pytest

from loadtest.papers.shifting import MIN_NS, goodput, most_in_a_minute


def run(good_rps: float, bad_rate: float) -> dict[str, float]:
    return {"good_rps": good_rps, "bad_rate": bad_rate}


def test_goodput_lies_between_the_loads_around_the_limit() -> None:
    assert goodput([run(100, 0.0), run(120, 0.02), run(130, 0.2)]) == pytest.approx(110)
    assert goodput([run(100, 0.02), run(120, 0.03)]) == 0.0
    assert goodput([run(100, 0.0), run(120, 0.001)]) == 0.0


def test_a_gpu_that_changes_twice_in_a_minute_counts_once() -> None:
    assert most_in_a_minute([]) == 0
    assert most_in_a_minute([(0, 1), (1, 1), (MIN_NS - 1, 2), (MIN_NS, 3)]) == 3
    assert most_in_a_minute([(0, 1), (MIN_NS, 2)]) == 1
