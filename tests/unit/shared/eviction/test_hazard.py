"""Indices beside the obvious way to get them: every horizon from every age on, tried."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.eviction.hazard import EDGES_NS, HAZARD_MAX, NUM_BINS, bin_of, indices

shares = st.floats(0, 1) | st.sampled_from([0.0, 1e-9, 0.5, 1.0])
hazards = st.lists(shares, min_size=NUM_BINS, max_size=NUM_BINS)


def rate(hazards: list[float], first: int, last: int) -> float:
    """Returns a second of what is kept from the beginning of one bin to the end of another one."""
    kept_s = returned = 0.0
    alive = 1.0
    for at in range(first, last + 1):
        gone = alive * min(hazards[at], HAZARD_MAX)
        kept_s += (alive - gone / 2) * (EDGES_NS[at + 1] - EDGES_NS[at]) / 1e9
        returned += gone
        alive -= gone
    return returned / kept_s


@given(hazards)
def test_an_index_is_the_best_rate_of_all_horizons(hazards: list[float]) -> None:
    best = [max(rate(hazards, at, end) for end in range(at, NUM_BINS)) for at in range(NUM_BINS)]
    # Where next to nothing is alive, what is left of a difference of sums is not exact.
    assert indices(hazards)[0] == pytest.approx(best[0], rel=1e-6, abs=1e-12)
    gentle = [min(each, 0.5) for each in hazards]
    best = [max(rate(gentle, at, end) for end in range(at, NUM_BINS)) for at in range(NUM_BINS)]
    assert indices(gentle) == pytest.approx(best, rel=1e-4, abs=1e-9)


@given(st.integers(-(1 << 62), 1 << 62))
def test_a_bin_is_between_its_edges(age_ns: int) -> None:
    number = bin_of(age_ns)
    assert number == max([at for at in range(NUM_BINS) if EDGES_NS[at] <= age_ns], default=0)


def test_what_returns_at_one_age_is_worth_more_the_nearer_that_is_and_nothing_after() -> None:
    found = indices([0.9 if at == 10 else 0.0 for at in range(NUM_BINS)])
    assert found[:11] == sorted(set(found[:11])) and found[0] > 0
    assert found[11:] == [0.0] * (NUM_BINS - 11)
