"""The search for the smallest number of GPUs: it finds boundaries, and ends whatever it is told."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from loadtest.planning.search import NARROW, GpuSearch


def play(search: GpuSearch, is_enough: Callable[[int], bool]) -> list[int]:
    """All that was tried, in order."""
    tried: list[int] = []
    while numbers := search.next_round():
        assert numbers == sorted(set(numbers)), "a number twice in a round"
        for number in numbers:
            tried.append(number)
            search.on_verdict(number, is_enough=is_enough(number))
    return tried


@given(
    boundary=st.integers(1, 400),
    off=st.floats(0.5, 1.5),
    at_once=st.integers(1, 4),
)
def test_a_boundary_is_found_from_a_guess_that_is_off_by_half(
    boundary: int, off: float, at_once: int
) -> None:
    search = GpuSearch(max(round(boundary * off), 1), 0, 1000, runs_max=40, at_once=at_once)
    play(search, lambda gpus: gpus >= boundary)
    assert search.enough is not None
    assert boundary <= search.enough <= boundary + max(search.enough // NARROW, 1) - 1
    assert search.short < boundary
    if search.enough <= 2 * NARROW - 1:
        assert search.enough == boundary and search.short == boundary - 1


@given(
    first=st.integers(1, 2000),
    floor=st.integers(0, 50),
    room=st.integers(1, 500),
    runs_max=st.integers(1, 12),
    at_once=st.integers(1, 4),
    verdicts=st.lists(st.booleans(), max_size=12),
)
def test_whatever_runs_say_it_ends_and_keeps_to_its_limits(
    first: int, floor: int, room: int, runs_max: int, at_once: int, verdicts: list[bool]
) -> None:
    search = GpuSearch(first, floor, floor + room, runs_max, at_once)
    given_verdicts = iter(verdicts)
    told: dict[int, bool] = {}

    def verdict(gpus: int) -> bool:
        told[gpus] = next(given_verdicts, False)
        return told[gpus]

    tried = play(search, verdict)
    assert 1 <= len(tried) <= runs_max
    assert len(set(tried)) == len(tried), "a number was tried twice"
    assert all(floor < number <= floor + room for number in tried)
    if search.enough is not None:
        assert told[search.enough]
        assert all(told[each] for each in told if each > search.enough)
        assert search.short < search.enough


def test_a_run_that_fails_above_one_that_did_not_counts() -> None:
    search = GpuSearch(10, 0, 100, runs_max=10, at_once=1)
    search.on_verdict(10, is_enough=True)
    search.on_verdict(12, is_enough=False)
    assert (search.short, search.enough) == (12, None)
    assert search.next_round() == [15]


def test_the_first_round_has_the_guess_and_what_comes_after_it() -> None:
    assert GpuSearch(8, 0, 100, runs_max=10).next_round() == [8, 10]
    assert GpuSearch(8, 0, 8, runs_max=10).next_round() == [8]
    assert GpuSearch(3, 6, 100, runs_max=10).next_round() == [7, 9]


def test_from_a_guess_that_is_enough_it_goes_down_step_by_step() -> None:
    search = GpuSearch(10, 0, 100, runs_max=20)
    assert play(search, lambda gpus: gpus >= 7) == [10, 13, 8, 6, 7]
    assert (search.short, search.enough) == (6, 7)
    assert play(GpuSearch(1, 0, 9, runs_max=20), lambda _: True) == [1, 2]


def test_at_the_most_that_is_allowed_it_gives_up() -> None:
    search = GpuSearch(3, 0, 6, runs_max=50)
    assert play(search, lambda _: False) == [3, 4, 5, 6]
    assert (search.short, search.enough) == (6, None)
