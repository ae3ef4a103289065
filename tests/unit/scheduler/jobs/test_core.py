"""The job core, event by event."""

import dataclasses

import pytest

from services.scheduler.core.effects import ProbeWorker
from services.scheduler.core.jobs import AnswerDropped, Deposed, JobLimits, PublishAdvice
from shared.ids import BatchId, ModelId, WorkerId
from shared.messages import BatchStart
from tests.unit.scheduler.jobs.driver import BATCH_NS, LIMITS, MS, SECOND, Driver, held


def ready(policy: str = "eager", *workers: str, limits: JobLimits = LIMITS) -> Driver:
    """A core past its learning, that has heard of these workers."""
    driver = Driver(policy, limits)
    for worker in workers or ("w",):
        driver.report(worker)
    return driver


def with_limits(**values: int) -> JobLimits:
    return dataclasses.replace(LIMITS, **values)  # type: ignore[arg-type]


# Jobs.


def test_a_job_becomes_a_batch_with_its_names_on_it() -> None:
    driver = ready()
    driver.submit("a", frontend="f1")
    [(worker, start)] = driver.sent()
    assert worker == "w"
    assert (start.model_id, start.variant, start.fence, start.office) == ("m", 0, 1, "all")
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


# Cancels.


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


def test_a_job_cancelled_while_learning_does_not_run() -> None:
    driver = Driver("deferred", with_limits(learning_ns=100 * MS))
    driver.report("w")
    driver.submit("a", "b", slo_ms=500)
    driver.cancel("a")
    driver.wait(SECOND)
    assert driver.sent_jobs() == [("w", ["b"])]


# Learning.


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
        batch_id=BatchId("s-0-7"), fence=1, model_id=ModelId("m"), variant=0, jobs=[]
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


# Workers.


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


def test_a_strange_size_teaches_nothing() -> None:
    driver = ready()
    driver.submit("a")
    [(_, start)] = driver.sent()
    driver.done("w", start, size=10**9)
    driver.submit("b")
    [(_, start)] = driver.sent()
    assert start.expected_ns == BATCH_NS[0]


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


# Times.


def expected_ns(driver: Driver) -> int:
    """Of the next batch of one."""
    driver.submit(f"probe{driver.now_ns}", slo_ms=1000)
    [(_, start)] = driver.sent()
    return start.expected_ns


def test_times_follow_what_batches_take() -> None:
    driver = ready()
    for number in range(30):
        driver.submit(f"j{number}", slo_ms=1000)
        [(_, start)] = driver.sent()
        driver.wait(start.expected_ns if number < 10 else 9 * MS)
        driver.done("w", start)
    assert 8 * MS < expected_ns(driver) < 10 * MS


def test_a_batch_behind_one_that_ended_early_is_timed_from_that_end() -> None:
    """Every batch takes 5 ms instead of 6. Clockwork sends the second one while the first runs, and
    expects it to begin a millisecond later than it does.
    """
    driver = ready("clockwork")
    for number in range(40):
        driver.submit(f"a{number}", slo_ms=60)
        [(_, first)] = driver.sent()
        driver.wait(2 * MS)
        driver.submit(f"b{number}", slo_ms=60)
        driver.wait(3 * MS)
        [(_, second)] = driver.sent()
        driver.done("w", first)
        driver.wait(5 * MS)
        driver.done("w", second)
        driver.wait(SECOND)
    assert 4.9 * MS < expected_ns(driver) < 5.1 * MS


def test_a_batch_whose_forerunners_end_was_lost_is_not_timed() -> None:
    limits = with_limits(ctrl_ns=4 * MS)
    driver = ready(limits=limits)
    for number in range(20):
        driver.submit(f"a{number}", slo_ms=1000)
        driver.wait(3 * MS)
        driver.submit(f"b{number}", slo_ms=1000)
        driver.wait(13 * MS)
        starts = driver.sent()
        driver.done("w", starts[-1][1])  # at 16, and not 6 after it could begin
        driver.report("w")
        driver.report("w")
        for _, start in driver.sent():
            driver.wait(start.start_in_ns + start.expected_ns)
            driver.done("w", start)
        driver.wait(SECOND)
    assert expected_ns(driver) < 7 * MS


# Advice.


def test_advice_comes_once_a_second() -> None:
    driver = ready()
    driver.wait(5 * SECOND)
    advice = driver.pop(PublishAdvice)
    assert len(advice) == 5
    assert {effect.advice.num_workers for effect in advice} == {1}


def test_a_model_that_looked_too_slow_is_tried_again() -> None:
    """After a stall no target seems reachable; without batches nothing better would be learnt."""
    driver = ready()
    number = 0
    while not driver.dropped():
        number += 1
        driver.submit(f"slow{number}")
        for _, start in driver.sent():
            driver.wait(SECOND // 2)
            driver.done("w", start)
    assert 2 < number < 10
    driver.submit("again")
    assert driver.dropped() == [("again", "deadline_unreachable")]
    driver.wait(2 * SECOND)
    driver.submit("a")
    assert driver.sent_jobs() == [("w", ["a"])]


def test_a_model_that_is_too_slow_for_one_target_is_not_forgotten_while_it_runs() -> None:
    driver = ready()
    for number in range(30):
        driver.submit(f"j{number}", slo_ms=1000)
        [(_, start)] = driver.sent()
        driver.submit("hopeless", slo_ms=1)
        driver.wait(300 * MS)
        driver.done("w", start)
    assert expected_ns(driver) > 250 * MS


def test_a_few_stalls_do_not_make_a_target_look_out_of_reach() -> None:
    """Two of a hundred batches that take 300 ms are a margin of 300 ms at the 99th percentile."""
    driver = ready()
    for number in range(100):
        driver.submit(f"j{number}")
        [(_, start)] = driver.sent()
        driver.wait(300 * MS if number % 50 == 5 else 6 * MS)
        driver.done("w", start)
    assert 20 * MS < expected_ns(driver) <= 25 * MS, "half of the target of 50 ms"
