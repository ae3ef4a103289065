"""Workers that come, go, restart, refuse, and serve something else."""

import pytest

from services.scheduler.core.jobs import PublishAdvice
from services.scheduler.core.jobs.devices import FORGET_AFTER_NS
from shared.ids import WorkerId
from tests.unit.scheduler.jobs.driver import BATCH_NS, MS, SECOND, Driver, ready


def test_batches_of_a_lost_worker_run_elsewhere_if_there_is_time() -> None:
    driver = ready("eager", "w0")
    driver.submit("a", slo_ms=20)
    driver.submit("b", slo_ms=100)
    driver.wait(15 * MS)
    assert driver.sent_jobs() == [("w0", ["a"]), ("w0", ["b"])]
    driver.report("w1")
    driver.gone("w0")
    assert driver.dropped() == [("a", "deadline_unreachable")]
    assert driver.sent_jobs() == [("w1", ["b"])]
    assert driver.counts() == {"requeued": 2, "dropped": 1}


def test_jobs_whose_last_worker_goes_are_answered_at_once() -> None:
    driver = ready("deferred")
    driver.submit("a")
    driver.gone("w")
    assert driver.dropped() == [("a", "no_worker")]
    assert driver.core.num_waiting == 0


def test_a_worker_that_went_long_ago_is_forgotten_and_its_number_used_again() -> None:
    driver = ready("eager", "w0", "w1")
    driver.gone("w0")
    driver.wait(FORGET_AFTER_NS // 2)
    assert driver.core.devices.get(WorkerId("w0")) is not None
    driver.report("w1")
    driver.wait(FORGET_AFTER_NS)
    assert driver.core.devices.get(WorkerId("w0")) is None
    assert driver.core.devices.get(WorkerId("w1")) is not None
    driver.report("w2")
    assert [device.number for device in driver.core.devices] == [1, 0]
    driver.submit("a")
    assert driver.sent_jobs() == [("w2", ["a"])]


def test_a_restarted_worker_lost_what_it_had() -> None:
    driver = ready()
    driver.submit("a")
    [(_, first)] = driver.sent()
    driver.report("w", incarnation="2")
    [(_, second)] = driver.sent()
    assert [job.job_id for job in second.jobs] == ["a"]
    assert second.batch_id != first.batch_id
    driver.done("w", first)
    assert driver.core.num_running == 1, "the end of the lost batch counts for nothing"


def test_a_late_report_of_a_dead_process_changes_nothing() -> None:
    driver = ready()
    driver.report("w", incarnation="2")
    driver.submit("a")
    [(_, start)] = driver.sent()
    driver.report("w", incarnation="1", seq=9)
    assert not driver.sent()
    assert driver.core.num_running == 1
    driver.report("w", driver.hold(start), incarnation="2")
    driver.done("w", start)
    assert driver.counts() == {"done": 1}


def test_an_old_report_changes_nothing() -> None:
    driver = ready("deferred")
    driver.report("w", state="draining", seq=1)
    driver.submit("a")
    assert driver.core.num_waiting == 1


def test_a_draining_worker_gets_nothing_more() -> None:
    driver = ready("eager", "w0", "w1")
    driver.report("w0", state="draining")
    driver.submit("a")
    assert driver.sent_jobs() == [("w1", ["a"])]


def test_a_worker_that_serves_another_model_from_now_on() -> None:
    driver = ready()
    driver.report("w", models=["m", "n"])
    driver.submit("a", model="n")
    assert driver.sent_jobs() == [("w", ["a"])]


def test_a_refused_batch_runs_again() -> None:
    driver = ready("eager", "w0", "w1")
    driver.submit("a")
    [(worker, start)] = driver.sent()
    driver.report("w0", state="draining")
    driver.done(worker, start, is_refused=True)
    assert driver.sent_jobs() == [("w1", ["a"])]


def test_a_worker_that_refused_is_left_alone_until_it_reports() -> None:
    """It would refuse again, as fast as messages travel."""
    driver = ready()
    driver.submit("a", slo_ms=1000)
    [(_, start)] = driver.sent()
    driver.done("w", start, is_refused=True)
    assert not driver.sent()
    driver.report("w")
    assert driver.sent_jobs() == [("w", ["a"])]


def test_no_batch_is_larger_than_the_smallest_that_a_worker_runs() -> None:
    driver = ready("eager", "w0")
    driver.report("w1", batch_ns=BATCH_NS[:2])
    driver.submit("a", "b", "c", "d", "e", slo_ms=1000)
    assert all(len(jobs) <= 2 for _, jobs in driver.sent_jobs())


@pytest.mark.parametrize("batch_ns", [[0], [5, 0], [5, -1, 3], []])
def test_a_card_that_cannot_be_true_is_left_out(batch_ns: list[int]) -> None:
    driver = ready("eager", "good")
    driver.report("bad", batch_ns=batch_ns, models=["m", "n"])
    driver.submit("a")
    assert driver.sent_jobs() == [("good", ["a"])]
    driver.submit("b", model="n")
    assert driver.dropped() == [("b", "no_worker")]


def test_advice_comes_once_a_second() -> None:
    driver = ready()
    driver.wait(5 * SECOND)
    advice = driver.pop(PublishAdvice)
    assert len(advice) == 5
    assert {effect.advice.num_workers for effect in advice} == {1}


def test_no_worker_is_advised_that_no_one_shot_model_needs() -> None:
    driver = Driver("eager")
    driver.report("chatty", models=[])
    driver.wait(20 * SECOND)
    advice = driver.pop(PublishAdvice)
    assert len(advice) == 20 and not any(effect.advice.add for effect in advice)


def test_the_first_worker_is_advised_when_the_last_is_gone() -> None:
    driver = ready()
    driver.gone("w")
    driver.wait(20 * SECOND)
    assert driver.pop(PublishAdvice)[-1].advice.add == 1


def test_two_versions_of_a_model_are_two_models() -> None:
    """While a model is replaced, a job runs on the weights that its input was made for."""
    driver = ready("eager", "old")
    driver.report("new", fingerprint="v2")
    driver.submit("a", "b", fingerprint="v2")
    driver.submit("c")
    sent = [(worker, start.fingerprint) for worker, start in driver.sent()]
    assert sent == [("new", "v2"), ("old", "m")]
    driver.gone("old")
    driver.submit("d")
    assert driver.dropped() == [("c", "no_worker"), ("d", "no_worker")]
