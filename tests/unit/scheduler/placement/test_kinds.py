"""What is reckoned with for the steps of workers that measure a little differently."""

from services.scheduler.core.fleet.kinds import GUESSED, KINDS_MAX, Kinds, Steps
from shared.ids import WorkerId


def steps(step_ms: float, row_ms: float = 0.05) -> Steps:
    return Steps(token_ms=0.1, step_ms=step_ms, row_ms=row_ms)


def names(num: int) -> list[WorkerId]:
    return [WorkerId(f"w{number}") for number in range(num)]


def test_workers_of_one_kind_have_the_very_same_figures_and_one_vote_each() -> None:
    kinds = Kinds()
    a, b, c = names(3)
    shared = kinds.update(a, steps(10.0))
    assert kinds.update(b, steps(11.0)) is shared
    for _ in range(100):
        assert kinds.update(b, steps(11.0)) is shared
    assert shared.step_ms == 10.5
    assert kinds.of(c) == shared, "who has measured nothing is as most are"


def test_nobody_has_measured_anything_yet() -> None:
    kinds = Kinds()
    (a,) = names(1)
    assert kinds.of(a) == GUESSED
    assert kinds.update(a, steps(2.0)).step_ms == 2.0, "the first to measure is believed at once"


def test_other_kinds_stay_apart_and_a_wild_one_moves_nobody() -> None:
    kinds = Kinds()
    workers = names(9)
    for number, worker in enumerate(workers[:8]):
        kinds.update(worker, steps(10.0 if number % 2 else 14.0))
    assert [round(kinds.of(each).step_ms, 6) for each in workers[:4]] == [14.0, 10.0, 14.0, 10.0]
    kinds.update(workers[8], steps(1000.0))
    assert {round(kinds.of(each).step_ms, 6) for each in workers[:8]} == {10.0, 14.0}


def test_a_kind_that_its_last_one_left_is_no_device_without_cost() -> None:
    kinds = Kinds()
    a, b = names(2)
    kinds.update(a, steps(10.0))
    unmeasured = kinds.of(b)
    assert kinds.update(a, steps(20.0)).step_ms == 20.0
    assert unmeasured.step_ms == 20.0, "it need not be heard to be as most are"
    kinds.forget(a)
    assert unmeasured == GUESSED
    assert GUESSED.step_ms == 10.0


def test_who_is_gone_counts_no_more_and_there_are_never_many_kinds() -> None:
    kinds = Kinds()
    a, b = names(2)
    kinds.update(a, steps(10.0))
    shared = kinds.update(b, steps(11.0))
    kinds.forget(a)
    assert shared.step_ms == 11.0
    kinds.forget(b)
    kinds.forget(b)
    assert kinds.of(b) == GUESSED
    for number, worker in enumerate(names(3 * KINDS_MAX)):
        assert kinds.update(worker, steps(2.0**number)).step_ms == 2.0**number
    assert len(kinds._kinds) == KINDS_MAX


def test_who_has_not_measured_is_as_most_are_whoever_is_the_last_to_tell() -> None:
    kinds = Kinds()
    workers = names(6)
    unmeasured = kinds.of(workers[5])
    for worker in workers[:4]:
        kinds.update(worker, steps(100.0))
    kinds.update(workers[4], steps(1000.0))
    assert unmeasured == kinds.of(workers[0]) == steps(100.0)


def test_steps_are_compared_as_they_were_seen_and_whole() -> None:
    """A line through few rows is far off where others have seen more."""
    kinds = Kinds()
    others = names(5)
    for worker in others[:4]:
        shared = kinds.update(worker, Steps(token_ms=0.1, step_ms=10.0, row_ms=0.2), mean_rows=50)
    odd = Steps(token_ms=0.125, step_ms=11.0, row_ms=0.02)
    assert kinds.update(others[4], odd, mean_rows=5) is shared
    assert kinds.update(others[4], odd, mean_rows=500) is not shared, "there it knows what it says"
    slow = Steps(token_ms=0.2, step_ms=10.0, row_ms=0.2)
    assert kinds.update(others[4], slow, mean_rows=50) is not shared, "prompts count"
    for rows in (-1, 0, 1 << 80):
        assert kinds.update(others[0], Steps(0.1, 10.0, 0.2), rows).step_ms == 10.0
