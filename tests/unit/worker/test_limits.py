import pytest

from services.worker.core.limits import Estimates


def test_before_the_first_prefill_everything_is_fetched() -> None:
    assert Estimates().is_fetch_worthwhile(1, 10**12, 10**12)


@pytest.mark.parametrize(
    ("num_bytes", "disk_bytes", "is_worth_it"),
    [
        (900, 0, True),  # 0.9 s of loading against 1 s of computing
        (1100, 0, False),
        (900, 90, True),  # disk and loads overlap: the slower one counts, not their sum
        (900, 110, False),
    ],
)
def test_fetching_is_worthwhile_when_faster_than_computing(
    num_bytes: int, disk_bytes: int, is_worth_it: bool
) -> None:
    speeds = Estimates(prefill_tokens_per_s=10, load_bytes_per_s=1000, disk_bytes_per_s=100)
    assert speeds.is_fetch_worthwhile(10, num_bytes, disk_bytes) == is_worth_it


def test_speeds_follow_what_is_measured() -> None:
    speeds = Estimates()
    speeds.on_prefill(100, 1_000_000_000)
    assert speeds.prefill_tokens_per_s == 100
    speeds.on_prefill(200, 1_000_000_000)
    assert speeds.prefill_tokens_per_s == 120
    before = speeds.load_bytes_per_s
    speeds.on_load(10**12, 1_000_000_000)
    assert speeds.load_bytes_per_s > before


def test_what_tells_nothing_of_speed_is_ignored() -> None:
    speeds = Estimates()
    speeds.on_prefill(63, 1_000_000_000)  # too few tokens
    speeds.on_prefill(100, 0)
    before = speeds.load_bytes_per_s
    speeds.on_load(100, 0)
    assert speeds.prefill_tokens_per_s == 0
    assert speeds.load_bytes_per_s == before
