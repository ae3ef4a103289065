"""Jobs: submitted, batched, dropped, cancelled."""

import pytest

from services.scheduler.core.jobs import AnswerDropped
from tests.unit.scheduler.jobs.driver import BATCH_NS, MS, SECOND, Driver, held, ready, with_limits


def test_a_job_becomes_a_batch_with_its_names_on_it() -> None:
    driver = ready()
    driver.submit("a", frontend="f1")
    [(worker, start)] = driver.sent()
    assert worker == "w"
    assert (start.model_id, start.variant, start.fence, start.leadership) == ("m", 0, 1, "all")
    assert [(job.job_id, job.frontend_id) for job in start.jobs] == [("a", "f1")]
    assert (start.start_in_ns, start.expected_ns) == (0, BATCH_NS[0])
    assert driver.core.num_running == 1
    assert driver.core.num_waiting == 0


def test_waiting_jobs_go_together_when_the_worker_is_done() -> None:
    driver = ready()
    driver.submit("a")
    [(_, start)] = driver.sent()
    driver.submit("b", "c")
    assert driver.core.num_waiting == 2
    driver.now_ns += 5 * MS
    driver.done("w", start)
    assert driver.sent_jobs() == [("w", ["b", "c"])]
    assert driver.counts() == {"done": 1}


def test_the_alarm_starts_a_deferred_batch() -> None:
    driver = ready("deferred")
    driver.submit("a", "b", slo_ms=50)
    assert not driver.sent()
    driver.wait(50 * MS - BATCH_NS[2])
    assert driver.sent_jobs() == [("w", ["a", "b"])]


def test_a_window_is_told_as_long_as_something_waits_in_it() -> None:
    driver = ready("deferred")
    driver.submit("a", "b", slo_ms=50)
    opens_ms, closes_ms = 50 - BATCH_NS[2] / MS, 50 - BATCH_NS[1] / MS
    (window,) = driver.core.windows(driver.now_ns)
    assert (window.model, window.num_waiting, window.is_offered) == ("m", 2, False)
    assert (window.opens_in_ms, window.closes_in_ms) == (opens_ms, closes_ms)
    driver.wait(int(opens_ms * MS))
    assert driver.sent_jobs() == [("w", ["a", "b"])]
    assert driver.core.windows(driver.now_ns) == []
    driver.submit("c", slo_ms=BATCH_NS[2] / MS)
    driver.wait(MS)  # the worker is not done
    (window,) = driver.core.windows(driver.now_ns)
    assert window.is_offered and window.opens_in_ms <= 0 < window.closes_in_ms


def test_the_most_urgent_window_is_told_first() -> None:
    driver = ready("deferred")
    driver.report("w", models=["m", "n"])
    driver.submit("a", slo_ms=50)
    driver.submit("b", slo_ms=30, model="n")
    assert [window.model for window in driver.core.windows(driver.now_ns)] == ["n", "m"]


def test_the_way_there_and_back_comes_off_the_target() -> None:
    limits = with_limits(ctrl_ns=2 * MS, data_ns=MS, return_ns=3 * MS)
    driver = ready("deferred", limits=limits)
    driver.submit("a", slo_ms=50)
    frontrun_ns = 50 * MS - 3 * MS - 3 * MS - BATCH_NS[1]
    driver.wait(frontrun_ns - 1)
    assert not driver.sent()
    driver.wait(1)
    [(_, start)] = driver.sent()
    assert start.start_in_ns == 3 * MS


@pytest.mark.parametrize("slo_ms", [0, 1, 5.9, -3])
def test_a_target_below_the_fastest_batch_is_answered_at_once(slo_ms: float) -> None:
    driver = ready("deferred")
    driver.submit("a", slo_ms=slo_ms)
    assert driver.dropped() == [("a", "deadline_unreachable")]
    assert driver.counts() == {"dropped": 1}


def test_a_target_that_the_fastest_batch_just_meets_is_served() -> None:
    driver = ready()
    driver.submit("a", slo_ms=6)
    assert driver.sent_jobs() == [("w", ["a"])]


def test_a_job_for_a_model_that_nobody_serves_is_answered_at_once() -> None:
    driver = ready()
    driver.submit("a", model="other")
    [answer] = driver.pop(AnswerDropped)
    [dropped] = answer.dropped.jobs
    assert (dropped.job_id, dropped.code, dropped.http_status) == ("a", "no_worker", 503)
    assert "other" in dropped.message
    assert dropped.retry_after_s > 0


def test_jobs_above_the_limit_are_refused() -> None:
    driver = ready("deferred", limits=with_limits(jobs_max=2))
    driver.submit("a", "b", "c")
    assert driver.dropped() == [("c", "overloaded")]
    assert driver.core.num_waiting == 2


def test_dropped_jobs_are_told_each_frontend_in_one_message() -> None:
    driver = ready()
    driver.gone("w")
    driver.submit("a", "b", frontend="f1")
    driver.submit("c", frontend="f2")
    answers = driver.pop(AnswerDropped)
    assert [(a.frontend_id, len(a.dropped.jobs)) for a in answers] == [("f1", 2), ("f2", 1)]


def test_submitting_again_changes_nothing() -> None:
    driver = ready("deferred")
    driver.submit("a")
    driver.submit("a")
    assert driver.core.num_waiting == 1
    driver.wait(SECOND)
    [(_, start)] = driver.sent()
    assert len(start.jobs) == 1
    driver.submit("a")
    assert driver.core.num_waiting == 0


def test_a_submit_that_crossed_its_result_does_not_run_again() -> None:
    driver = ready(limits=with_limits(ended_ns=200 * MS))
    driver.submit("a")
    [(_, start)] = driver.sent()
    driver.done("w", start)
    driver.wait(199 * MS)
    driver.submit("a")
    assert not driver.sent()
    driver.wait(2 * MS)
    driver.submit("a")  # the result was lost: nobody submits for so long otherwise
    assert driver.sent_jobs() == [("w", ["a"])]


def test_a_job_that_runs_out_of_time_is_answered_before_its_deadline() -> None:
    driver = ready("deferred")
    driver.submit(*"abcdefgh")  # a full batch, 13 ms
    driver.submit("late", slo_ms=15)
    driver.wait(9 * MS)
    assert not driver.dropped()
    driver.wait(1)
    assert driver.dropped() == [("late", "deadline_unreachable")]


def test_a_cancelled_job_does_not_run() -> None:
    driver = ready("deferred")
    driver.submit("a", "b")
    driver.cancel("a", "unknown")
    driver.wait(SECOND)
    assert driver.sent_jobs() == [("w", ["b"])]
    assert driver.counts()["cancelled"] == 1


def test_a_submit_that_comes_after_its_cancel_does_not_run() -> None:
    driver = ready("deferred")
    driver.submit("a")
    driver.cancel("a")
    driver.submit("a")
    assert driver.core.num_waiting == 0


def test_cancelling_a_job_in_a_batch_changes_nothing() -> None:
    driver = ready()
    driver.submit("a")
    [(_, start)] = driver.sent()
    driver.cancel("a")
    assert driver.core.num_running == 1
    driver.done("w", start)
    assert driver.counts() == {"done": 1}


@pytest.mark.parametrize("policy", ["steady", "deferred", "eager"])
def test_what_cannot_be_served_whatever_happens_is_told_so_on_arrival(policy: str) -> None:
    """8 jobs take 13 ms, so at most 30 can be done in 50 ms, beside those that left at once."""
    driver = ready(policy)
    driver.submit(*(f"j{number}" for number in range(100)), slo_ms=50)
    refused = [job for job, code in driver.dropped() if code == "deadline_unreachable"]
    assert refused == [f"j{number}" for number in range(100 - len(refused), 100)]
    assert 100 - 30 - 16 <= len(refused) <= 100 - 30
    driver.submit("patient", slo_ms=3_600_000)
    driver.submit("one_more", slo_ms=50)
    assert driver.dropped() == [("one_more", "deadline_unreachable")]


def test_workers_that_are_busy_with_an_earlier_leaders_batches_count() -> None:
    driver = Driver("steady", with_limits(learning_ns=10 * MS), fence=2)
    workers = [f"w{number}" for number in range(4)]
    for worker in workers:
        driver.report(worker, held(f"s-1-{worker}", f"old-{worker}"))
    driver.submit(*(f"j{number}" for number in range(100)), slo_ms=60)
    driver.wait(10 * MS)
    assert not driver.dropped()
    assert driver.core.num_waiting == 100
