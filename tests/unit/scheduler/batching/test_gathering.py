"""Which jobs make a batch."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.batching.gathering import (
    AllowanceGathering,
    Gathering,
    PrefixGathering,
    TargetGathering,
    count_late,
)
from services.scheduler.core.batching.job import Job, ModelSpec

SPEC = ModelSpec("m", [0, 6, 7, 8, 9, 10], slo_ns=20)


def jobs_due(*deadlines_ns: int) -> list[Job]:
    return [Job("m", deadline_ns, 0) for deadline_ns in deadlines_ns]


def gather(gathering: Gathering, deadlines_ns: list[int], room: float = 0) -> tuple[int, int]:
    """At 0: jobs left out and batch size."""
    return gathering.gather(SPEC, jobs_due(*deadlines_ns), 0, room)


def test_prefix_takes_what_ends_by_the_heads_deadline() -> None:
    assert gather(PrefixGathering(), [8, 20, 20, 20]) == (0, 3)
    assert gather(PrefixGathering(), [8, 8]) == (0, 2)


def test_prefix_leaves_out_only_what_cannot_even_run_alone() -> None:
    assert gather(PrefixGathering(), [4, 5, 6, 20, 20]) == (2, 1)
    assert gather(PrefixGathering(), [4, 5]) == (2, 0)
    assert gather(PrefixGathering(), []) == (0, 0)


def test_target_leaves_out_heads_that_keep_the_batch_small() -> None:
    assert gather(TargetGathering(4), [6, 7, 20, 20, 20, 20]) == (2, 4)
    assert gather(TargetGathering(2), [6, 7, 20, 20, 20, 20]) == (1, 2)


def test_target_takes_more_than_it_aims_at_if_it_fits() -> None:
    assert gather(TargetGathering(2), [20, 20, 20, 20]) == (0, 4)


def test_target_is_no_larger_than_what_waits() -> None:
    assert gather(TargetGathering(4), [6, 7, 7]) == (1, 2)
    assert gather(TargetGathering(4), [6]) == (0, 1)
    assert gather(TargetGathering(4), [5]) == (1, 0)


def test_allowance_leaves_out_no_more_than_there_is_room_to_lose() -> None:
    gathering = AllowanceGathering(enough=3, full=4)
    deadlines_ns = [6, 7, 20, 20, 20, 20]
    assert gather(gathering, deadlines_ns, room=1.9) == (0, 1)
    assert gather(gathering, deadlines_ns, room=2) == (2, 4)


def test_allowance_makes_full_batches_once_too_much_was_lost() -> None:
    gathering = AllowanceGathering(enough=2, full=4)
    deadlines_ns = [7, 8, 20, 20, 20, 20]
    assert gather(gathering, deadlines_ns, room=9) == (0, 2)
    assert gather(gathering, deadlines_ns, room=inf) == (2, 4)


GATHERINGS = st.one_of(
    st.just(PrefixGathering()),
    st.builds(TargetGathering, st.integers(1, 5)),
    st.builds(AllowanceGathering, st.integers(1, 5), st.integers(1, 5)),
)
ROOMS = st.one_of(st.floats(0, 8), st.just(inf))


@given(GATHERINGS, st.lists(st.integers(0, 40), max_size=12), st.integers(0, 30), ROOMS)
def test_every_batch_ends_by_its_heads_deadline(
    gathering: Gathering, deadlines_ns: list[int], start_at_ns: int, room: float
) -> None:
    jobs = jobs_due(*sorted(deadlines_ns))
    num_left_out, size = gathering.gather(SPEC, jobs, start_at_ns, room)
    num_late = count_late(SPEC, jobs, start_at_ns)
    assert all(job.deadline_ns < start_at_ns + 6 for job in jobs[:num_late])
    assert all(job.deadline_ns >= start_at_ns + 6 for job in jobs[num_late:])
    assert num_late <= num_left_out <= len(jobs)
    assert (size == 0) == (num_late == len(jobs)), "nothing runs although something could"
    if size:
        assert num_left_out + size <= len(jobs)
        assert start_at_ns + SPEC.batch_ns[size] <= jobs[num_left_out].deadline_ns


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(0, 8))
def test_allowance_keeps_within_its_room(deadlines_ns: list[int], room: int) -> None:
    jobs = jobs_due(*sorted(deadlines_ns))
    num_left_out, _ = AllowanceGathering(4, 5).gather(SPEC, jobs, 0, room)
    assert num_left_out <= count_late(SPEC, jobs, 0) + room


@given(st.lists(st.integers(6, 40), min_size=1, max_size=12))
def test_prefix_is_as_long_as_can_be(deadlines_ns: list[int]) -> None:
    jobs = jobs_due(*sorted(deadlines_ns))
    _, size = PrefixGathering().gather(SPEC, jobs, 0, 0)
    is_all = size == min(len(jobs), SPEC.size_max)
    assert is_all or SPEC.batch_ns[size + 1] > jobs[0].deadline_ns
