"""l(b) = alpha b + beta: fitted, corrected by reports, with a margin."""

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core.batching.latency import BatchLatency, LatencyLimits

MS = 1_000_000


def resnet(scale: float = 1.0, size_max: int = 32) -> BatchLatency:
    """ResNet50 on a 1080Ti (Table 2 of the paper)."""
    return BatchLatency.linear(1.053 * MS * scale, 5.072 * MS * scale, size_max)


def true_ns(size: int) -> int:
    return round((1.053 * size + 5.072) * MS)


def feed(latency: BatchLatency, num: int, rng: random.Random, sizes: tuple[int, int]) -> None:
    for _ in range(num):
        size = rng.randint(*sizes)
        latency.observe(size, true_ns(size))


def test_the_table_of_a_line() -> None:
    latency = BatchLatency.linear(1.0, 5.0, size_max=4)
    assert latency.table() == [0, 6, 7, 8, 9]
    assert [latency.largest(ns) for ns in (-1, 0, 5, 6, 8, 9, 1000)] == [0, 0, 0, 1, 3, 4, 4]
    assert latency.margin_ns == 0
    assert latency.r2 == 1.0


def test_a_fit_finds_the_line_and_says_how_good_it_is() -> None:
    exact = BatchLatency.fit([(b, true_ns(b)) for b in (1, 2, 4, 8, 16)], size_max=16)
    assert exact.alpha_ns == pytest.approx(1.053 * MS, rel=1e-6)
    assert exact.beta_ns == pytest.approx(5.072 * MS, rel=1e-6)
    assert exact.r2 == pytest.approx(1.0)
    noisy = BatchLatency.fit([(1, 10), (2, 30), (3, 20)], size_max=3)
    assert (noisy.alpha_ns, noisy.beta_ns, noisy.r2) == pytest.approx((5.0, 10.0, 0.25))


def test_a_fit_has_no_negative_terms() -> None:
    through_origin = BatchLatency.fit([(1, 1), (2, 30), (4, 90)], size_max=4)
    assert through_origin.beta_ns == 0
    assert through_origin.alpha_ns == pytest.approx((1 + 60 + 360) / (1 + 4 + 16))
    flat = BatchLatency.fit([(1, 40), (2, 20)], size_max=4)
    assert (flat.alpha_ns, flat.beta_ns) == (0, 30)


@pytest.mark.parametrize("pairs", [[], [(4, 10)], [(4, 10), (4, 12)], [(0, 1), (1, 2)]])
def test_one_size_is_no_profile(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match=r"two distinct|at least 1"):
        BatchLatency.fit(pairs, size_max=8)


@pytest.mark.parametrize(
    ("alpha", "beta", "size_max"),
    [(-1.0, 5.0, 4), (0.0, 0.0, 4), (math.nan, 1.0, 4), (1.0, math.inf, 4), (1.0, 1.0, 0)],
)
def test_no_such_line(alpha: float, beta: float, size_max: int) -> None:
    with pytest.raises(ValueError, match=r"cannot take|size_max"):
        BatchLatency.linear(alpha, beta, size_max)


@pytest.mark.parametrize("lie", [0.7, 1.3])
def test_a_profile_that_lies_by_30_percent_is_corrected_within_a_few_dozen(lie: float) -> None:
    latency = resnet(lie)
    feed(latency, 36, random.Random(1), (1, 32))
    for size in (1, 16, 32):
        line = latency.alpha_ns * size + latency.beta_ns
        assert line == pytest.approx(true_ns(size), rel=0.04)
        assert true_ns(size) * 0.96 <= latency.table()[size] <= true_ns(size) * 1.06


def test_a_wrong_shape_is_corrected_too() -> None:
    latency = BatchLatency.linear(3.0 * MS, 0.5 * MS, size_max=32)
    feed(latency, 400, random.Random(1), (1, 32))
    assert latency.alpha_ns == pytest.approx(1.053 * MS, rel=0.05)
    assert latency.beta_ns == pytest.approx(5.072 * MS, rel=0.1)


def test_one_size_alone_scales_the_profile() -> None:
    latency = resnet()
    for _ in range(600):
        latency.observe(8, round(true_ns(8) * 1.3))
    assert latency.alpha_ns / latency.beta_ns == pytest.approx(1.053 / 5.072, rel=0.03)
    assert latency.alpha_ns == pytest.approx(1.3 * 1.053 * MS, rel=0.01)


def test_a_model_of_size_one() -> None:
    latency = BatchLatency.linear(0.0, 1.0 * MS, size_max=1)
    for _ in range(100):
        latency.observe(1, 2 * MS)
    assert latency.table()[1] == pytest.approx(2 * MS, rel=0.05)


def test_times_many_times_off_are_believed_once_they_are_the_rule() -> None:
    latency = resnet(0.05)
    feed(latency, 100, random.Random(1), (1, 32))
    assert latency.table()[16] == pytest.approx(true_ns(16), rel=0.15)


def test_a_stall_behind_slow_batches_is_believed_no_further_than_those() -> None:
    latency, calm = resnet(), resnet()
    for _ in range(3):
        latency.observe(8, 10 * true_ns(8))
        calm.observe(8, 10 * true_ns(8))
    latency.observe(8, 1000 * true_ns(8))
    calm.observe(8, 10 * true_ns(8))
    assert latency.table()[8] <= 1.2 * calm.table()[8]


def test_slow_and_fast_outliers_are_no_rule_together() -> None:
    latency = resnet()
    for _ in range(8):
        latency.observe(8, 50 * true_ns(8))
        latency.observe(8, true_ns(8) // 50)
    line = latency.alpha_ns * 8 + latency.beta_ns
    assert line == pytest.approx(true_ns(8), rel=0.5)


def test_no_margin_before_reports_nor_for_true_ones() -> None:
    latency = resnet()
    assert latency.margin_ns == 0
    feed(latency, 300, random.Random(2), (1, 32))
    assert latency.margin_ns <= 1  # rounding
    assert latency.version == 0


def test_the_margin_covers_late_batches_when_they_are_some_percent() -> None:
    rng, latency = random.Random(3), resnet()
    for n in range(512):
        size = rng.randint(1, 32)
        latency.observe(size, true_ns(size) + (4 * MS if n % 20 == 0 else 0))
    late = [true_ns(size) + 4 * MS for size in range(1, 33)]
    assert latency.margin_ns > 3 * MS
    assert all(latency.table()[b] >= late[b - 1] * 0.98 for b in range(1, 33))


def test_one_stall_in_thousands_changes_nothing() -> None:
    rng, latency = random.Random(4), resnet()
    feed(latency, 1000, rng, (1, 32))
    latency.observe(16, 1000 * MS)
    feed(latency, 400, rng, (1, 32))
    assert latency.version == 0
    assert latency.margin_ns < 0.05 * MS


def test_a_first_report_that_is_late_is_no_margin() -> None:
    latency = resnet()
    latency.observe(8, 1000 * MS)
    assert latency.margin_ns == 0


def test_the_margin_goes_when_the_batches_are_in_time_again() -> None:
    rng, latency = random.Random(5), resnet()
    for n in range(300):
        size = rng.randint(1, 32)
        latency.observe(size, true_ns(size) + (4 * MS if n % 10 == 0 else 0))
    assert latency.margin_ns > 3 * MS
    feed(latency, 1500, rng, (1, 32))
    assert latency.margin_ns < 0.1 * MS
    assert latency.table()[8] == pytest.approx(true_ns(8), rel=0.03)


def test_the_table_is_kept_while_nothing_matters() -> None:
    latency = resnet()
    table = latency.table()
    latency.observe(8, round(true_ns(8) * 1.005))
    assert (latency.version, latency.table()) == (0, table)
    assert latency.table() is table
    for _ in range(64):
        latency.observe(8, round(true_ns(8) * 1.1))
    assert 0 < latency.version < 20
    assert latency.table() is not table


def test_a_report_of_nothing_is_refused() -> None:
    for size, ns in ((0, 5), (3, 0), (3, -5)):
        with pytest.raises(ValueError, match="at least 1"):
            resnet().observe(size, ns)


reports = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 10**10)), max_size=60)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(reports, st.floats(0, 1e8), st.floats(1, 1e8), st.integers(1, 33))
def test_whatever_is_reported_the_table_is_one(
    reported: list[tuple[int, int]], alpha: float, beta: float, size_max: int
) -> None:
    latency = BatchLatency.linear(alpha, beta, size_max, LatencyLimits(num_residuals_max=32))
    version, table = latency.version, latency.table()
    for size, ns in reported:
        latency.observe(size, ns)
        assert (latency.version == version) == (latency.table() is table)
        version, table = latency.version, latency.table()
        assert len(table) == size_max + 1
        assert table[0] == 0 < table[1]
        assert all(a <= b for a, b in pairwise(table))
        assert latency.margin_ns >= 0
        line = latency.alpha_ns * size_max + latency.beta_ns + latency.margin_ns
        assert table[-1] == pytest.approx(line, rel=0.0101, abs=1)
    for budget in (0, 1, *table, table[-1] * 2):
        size = latency.largest(budget)
        assert table[size] <= budget
        assert size == size_max or table[size + 1] > budget
