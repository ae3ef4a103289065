"""The simulator's parts: arrivals, delays, bounds."""

import numpy as np
import pytest

from loadtest.simulator.arrivals import (
    changing,
    popularity,
    renewal,
)
from loadtest.simulator.bounds import capacity_rps, staggered_rps, uncoordinated_rps
from loadtest.simulator.models import copies, linear_model, zoo_models

RESNET = linear_model("resnet", 1.053, 5.072, 25.0)
INCEPTION = linear_model("inception", 5.090, 18.368, 70.0)


def test_bounds_are_those_of_table_2() -> None:
    assert staggered_rps([RESNET], [1.0], 8) == pytest.approx(5839, abs=1)
    assert staggered_rps([INCEPTION], [1.0], 8) == pytest.approx(1083, abs=1)
    assert uncoordinated_rps(RESNET, 8) == pytest.approx(4501, abs=1)
    assert uncoordinated_rps(INCEPTION, 8) == pytest.approx(713, abs=1)


def test_more_models_on_the_same_gpus_are_bound_lower() -> None:
    one = staggered_rps([RESNET], [1.0], 8)
    ten = staggered_rps(copies(RESNET, 10), [1.0] * 10, 8)
    assert 0.5 * one < ten < one < capacity_rps([RESNET], [1.0], 8)
    zoo = zoo_models("a100")
    assert staggered_rps(zoo, [1.0] * len(zoo), 128) > 2 * staggered_rps(zoo, [1.0] * len(zoo), 64)


@pytest.mark.parametrize("shape", [0.05, 1.0, 5.0])
def test_renewal_arrivals(shape: float) -> None:
    arrivals = renewal([2000.0, 500.0], 10.0, seed=3, shape=shape)
    counts = np.bincount(arrivals.model)
    assert counts == pytest.approx([20_000, 5_000], rel=0.25 if shape < 1 else 0.05)
    assert (np.diff(arrivals.at_ns) >= 0).all() and arrivals.at_ns.max() < arrivals.end_ns
    gaps = np.diff(arrivals.at_ns[arrivals.model == 0]) / 1e9
    assert gaps.std() / gaps.mean() == pytest.approx(shape**-0.5, rel=0.15)
    twice = renewal([4000.0, 1000.0], 5.0, seed=3, shape=shape)
    assert np.abs(arrivals.at_ns - 2 * twice.at_ns).max() <= 2


def test_changing_rates_are_followed() -> None:
    knots = np.array([0.0, 5.0, 10.0])
    arrivals = changing(knots, np.array([[0.0, 2000.0, 0.0], [300.0, 300.0, 300.0]]), seed=1)
    rising = arrivals.at_ns[arrivals.model == 0] / 1e9
    assert len(rising) == pytest.approx(10_000, rel=0.05)
    assert (rising < 2.5).sum() == pytest.approx(1250, rel=0.15)
    assert (arrivals.model == 1).sum() == pytest.approx(3000, rel=0.1)


def test_popularity() -> None:
    assert popularity("equal", 4) == [0.25] * 4
    zipf = popularity("zipf:0.9", 3)
    assert sum(zipf) == pytest.approx(1.0)
    assert zipf[0] / zipf[2] == pytest.approx(3**0.9)
