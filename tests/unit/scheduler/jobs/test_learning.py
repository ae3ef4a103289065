"""A new leader: what it holds back, and what an earlier one left behind."""

import pytest

from services.scheduler.core.jobs import Deposed
from shared.ids import BatchId, ModelId
from shared.wire.messages import BatchStart
from tests.unit.scheduler.jobs.driver import MS, SECOND, Driver, held, ready, with_limits


def test_nothing_is_sent_while_learning() -> None:
    driver = Driver("eager", with_limits(learning_ns=100 * MS))
    driver.report("w")
    driver.submit("a", slo_ms=500)
    driver.wait(99 * MS)
    assert not driver.sent()
    driver.wait(MS)
    assert driver.sent_jobs() == [("w", ["a"])]


def test_the_deadline_counts_from_the_submit_and_not_from_the_end_of_learning() -> None:
    driver = Driver("eager", with_limits(learning_ns=100 * MS))
    driver.report("w")
    driver.submit("late", slo_ms=105)
    driver.submit("in_time", slo_ms=107)
    driver.wait(100 * MS)
    assert driver.dropped() == [("late", "deadline_unreachable")]
    assert driver.sent_jobs() == [("w", ["in_time"])]


def test_a_worker_gets_nothing_until_an_earlier_leaders_batch_is_over() -> None:
    driver = Driver("eager", with_limits(learning_ns=100 * MS), fence=2)
    driver.report("w", held("s-1-7", "a"))
    driver.submit("a", "b", slo_ms=500)
    driver.wait(100 * MS)
    assert not driver.sent()
    driver.report("w")
    assert driver.sent_jobs() == [("w", ["b"])], "what the earlier leader sent is not sent again"


def test_the_end_of_an_earlier_leaders_batch_frees_the_worker_and_its_jobs() -> None:
    driver = ready()
    driver.report("w", held("s-0-7", "a"))
    driver.submit("b")
    assert not driver.sent()
    start = BatchStart(
        batch_id=BatchId("s-0-7"),
        fence=1,
        model_id=ModelId("m"),
        fingerprint="m",
        variant=0,
        jobs=[],
    )
    driver.done("w", start)
    assert driver.sent_jobs() == [("w", ["b"])]
    driver.submit("a")
    assert driver.core.num_waiting == 1


def test_a_leader_whose_name_begins_alike_is_another_leader() -> None:
    driver = ready()  # its name is s-1
    driver.report("w", held("s-12-1", "a"))
    driver.submit("b")
    assert not driver.sent()


@pytest.mark.parametrize("event", ["report", "done"])
def test_who_hears_of_a_later_leader_is_deposed(event: str) -> None:
    driver = ready()
    driver.submit("a")
    [(_, start)] = driver.sent()
    if event == "report":
        driver.report("w", fence=5)
    else:
        driver.done("w", start, is_refused=True, fence=5)
    assert driver.pop(Deposed) == [Deposed(5)]


def test_a_job_cancelled_while_learning_does_not_run() -> None:
    driver = Driver("deferred", with_limits(learning_ns=100 * MS))
    driver.report("w")
    driver.submit("a", "b", slo_ms=500)
    driver.cancel("a")
    driver.wait(SECOND)
    assert driver.sent_jobs() == [("w", ["b"])]
