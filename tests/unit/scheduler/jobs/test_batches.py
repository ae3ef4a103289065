"""Batches that were sent: lost, overdue, over."""

from services.scheduler.core.base.effects import ProbeWorker
from shared.ids import WorkerId
from tests.unit.scheduler.jobs.driver import BATCH_NS, MS, SECOND, ready, with_limits


def test_a_batch_missing_from_two_reports_runs_again() -> None:
    driver = ready()
    driver.submit("a", slo_ms=1000)
    driver.sent()
    driver.report("w")  # perhaps sent before the batch came
    assert not driver.sent()
    driver.report("w")
    assert driver.sent_jobs() == [("w", ["a"])]


def test_a_batch_that_is_reported_again_is_not_missing() -> None:
    driver = ready()
    driver.submit("a", slo_ms=1000)
    [(_, start)] = driver.sent()
    driver.report("w")
    driver.report("w", driver.hold(start))
    driver.report("w")
    assert not driver.sent()


def test_an_overdue_batch_asks_whether_its_worker_is_there() -> None:
    driver = ready(limits=with_limits(overdue_ns=50 * MS))
    driver.submit("a")
    driver.wait(BATCH_NS[0] + 50 * MS)
    assert driver.pop(ProbeWorker) == [ProbeWorker(WorkerId("w"))]


def test_a_batch_that_ended_asks_for_nothing() -> None:
    driver = ready()
    driver.submit("a")
    [(_, start)] = driver.sent()
    driver.done("w", start)
    driver.wait(SECOND)
    assert not driver.pop(ProbeWorker)


def test_a_worker_that_falls_silent_is_asked_whether_it_is_there() -> None:
    """Before it is given a batch that would be lost."""
    driver = ready()
    driver.wait(3 * SECOND)
    assert ProbeWorker(WorkerId("w")) in driver.pop(ProbeWorker)
    driver.report("w")
    driver.wait(SECOND // 2)
    assert not driver.pop(ProbeWorker)


def test_nobody_is_asked_for_a_silence_in_which_nobody_listened() -> None:
    driver = ready()
    driver.wait(SECOND // 2)
    driver.now_ns += 30 * SECOND  # the bus was away, or this process stood still
    driver.wake()
    assert not driver.pop(ProbeWorker)
    driver.wait(3 * SECOND)
    assert ProbeWorker(WorkerId("w")) in driver.pop(ProbeWorker), "its silence since then"


def test_the_end_of_a_batch_counts_once() -> None:
    driver = ready()
    driver.submit("a")
    [(_, start)] = driver.sent()
    for _ in range(2):
        driver.done("w", start)
    assert driver.counts() == {"done": 1}


def test_late_jobs_are_counted_as_late() -> None:
    driver = ready()
    driver.submit("a", slo_ms=10)
    [(_, start)] = driver.sent()
    driver.wait(11 * MS)
    driver.done("w", start)
    assert driver.counts() == {"late": 1}
