"""The rank process, event by event."""

from services.scheduler.core.base.effects import ProbeWorker
from services.scheduler.core.jobs import PublishAdvice, SendGrant
from shared.wire.messages import RankGrant
from tests.unit.scheduler.jobs.driver import LIMITS, MS, SECOND, held
from tests.unit.scheduler.jobs.rank_driver import RankDriver


def ready(*workers: str) -> RankDriver:
    driver = RankDriver()
    for worker in workers or ("w",):
        driver.report(worker)
    return driver


def grants(driver: RankDriver) -> list[RankGrant]:
    return [effect.grant for effect in driver.pop(SendGrant)]


def granted_to(driver: RankDriver) -> list[tuple[int, str, str]]:
    """(shard, model, worker) of every grant since the last call."""
    return [
        (effect.shard, effect.grant.model_id, effect.grant.worker_id)
        for effect in driver.pop(SendGrant)
    ]


def test_an_offer_meets_the_first_idle_worker() -> None:
    driver = ready("w0", "w1")
    driver.offer(shard=3)
    assert granted_to(driver) == [(3, "m", "w0")]


def test_a_granted_worker_is_not_granted_again() -> None:
    driver = ready("w0", "w1")
    for shard in range(3):
        driver.report("w0", models=["m"])
        driver.offer(shard=shard)
    assert granted_to(driver) == [(0, "m", "w0"), (1, "m", "w1")]


def test_a_booked_worker_is_granted_when_its_batch_is_expected_to_end() -> None:
    driver = ready()
    driver.offer()
    [grant] = grants(driver)
    driver.book(grant, end_in_ms=10)
    driver.offer()
    driver.wait(10 * MS - 1)
    assert not grants(driver)
    driver.wait(1)
    [grant] = grants(driver)
    assert grant.free_in_ns == 0


def test_the_end_of_a_batch_frees_its_worker_at_once() -> None:
    driver = ready()
    driver.offer()
    driver.book(grants(driver)[0], end_in_ms=10)
    driver.offer()
    driver.wait(5 * MS)
    driver.done("w")
    assert len(grants(driver)) == 1


def test_an_end_that_is_told_twice_frees_a_worker_once() -> None:
    driver = ready()
    driver.offer()
    driver.book(grants(driver)[0], end_in_ms=10)
    driver.offer()
    driver.wait(5 * MS)
    driver.done("w")
    driver.book(grants(driver)[0], end_in_ms=10)
    driver.done("w")
    driver.offer()
    assert not grants(driver), "the second batch runs"
    driver.wait(MS)
    driver.done("w", "c")
    assert len(grants(driver)) == 1


def test_the_most_urgent_offer_is_first_whatever_its_shard() -> None:
    driver = RankDriver()
    driver.offer("a", 30, shard=0)
    driver.offer("b", 10, shard=1)
    driver.report("w", models=["a", "b"])
    assert granted_to(driver) == [(1, "b", "w")]


def test_a_worker_that_is_given_back_goes_to_the_next() -> None:
    driver = ready()
    driver.offer(shard=0)
    [grant] = grants(driver)
    driver.offer(shard=1)
    driver.book(grant)
    assert granted_to(driver) == [(1, "m", "w")]


def test_a_late_offer_does_not_replace_a_newer_one() -> None:
    driver = RankDriver()
    driver.offer(latest_in_ms=None, seq=5)
    driver.offer(seq=4)
    driver.report("w")
    assert not grants(driver)


def test_a_model_that_moves_to_another_shard_is_offered_by_that() -> None:
    driver = RankDriver()
    driver.offer(shard=0, seq=1000)
    driver.offer(shard=1, seq=3)
    driver.report("w")
    assert granted_to(driver) == [(1, "m", "w")]


def test_a_grant_without_an_answer_is_taken_back() -> None:
    driver = ready()
    driver.offer(shard=0)
    assert grants(driver)
    driver.wait(LIMITS.grant_ns - 1)
    driver.offer(shard=1, latest_in_ms=100)
    assert not grants(driver)
    driver.wait(1)
    assert granted_to(driver) == [(1, "m", "w")]


def test_an_answer_after_that_counts_for_nothing() -> None:
    driver = ready()
    driver.offer(shard=0)
    [first] = grants(driver)
    driver.wait(LIMITS.grant_ns)
    driver.offer(shard=1)
    [second] = grants(driver)
    driver.book(first)
    driver.offer(shard=0)
    assert not grants(driver), "the worker is the second shard's"
    driver.book(second)
    assert len(grants(driver)) == 1


def test_a_grant_of_a_process_that_is_gone_does_not_free_the_next_one() -> None:
    driver = ready()
    driver.offer(shard=0)
    [first] = grants(driver)
    driver.report("w", incarnation="2")
    driver.offer(shard=1)
    [second] = grants(driver)
    driver.book(first)
    driver.offer(shard=0)
    assert not grants(driver)
    driver.wait(LIMITS.grant_ns - 1)
    driver.book(second, end_in_ms=5)
    driver.wait(4 * MS)
    assert not grants(driver), "nor does the time after which it would have been taken back"


def test_a_late_report_does_not_free_a_worker_that_is_granted() -> None:
    driver = ready("w")
    driver.offer()
    driver.book(grants(driver)[0], end_in_ms=5)
    driver.wait(6 * MS)
    driver.offer()
    assert grants(driver)
    driver.report("w")
    driver.offer(shard=1)
    assert not grants(driver)


def test_batches_whose_ends_were_lost_do_not_stall_a_worker() -> None:
    driver = ready()
    for _ in range(2):
        driver.offer()
        driver.wait(5 * MS)
        driver.book(grants(driver)[0], end_in_ms=5)
    driver.wait(20 * MS)
    driver.offer(latest_in_ms=100)
    assert not grants(driver)
    driver.report("w", held("b"))
    assert not grants(driver)
    driver.report("w")
    assert grants(driver)


def test_a_worker_that_is_refused_waits_and_is_asked_for() -> None:
    driver = ready("w0", "w1")
    driver.wait(MS)
    driver.offer(latest_in_ms=100)
    [grant] = grants(driver)
    driver.book(grant, is_refused=True)
    assert driver.pop(ProbeWorker) == [ProbeWorker(grant.worker_id)]
    driver.offer(latest_in_ms=100)
    assert granted_to(driver) == [(0, "m", "w1")], "not the one that was just refused"
    driver.offer("m", latest_in_ms=100, shard=1)
    driver.wait(LIMITS.grant_ns)
    assert (1, "m", "w0") in granted_to(driver)


def test_a_worker_that_is_silent_after_its_batch_should_be_over_is_asked_for() -> None:
    driver = ready()
    driver.wait(MS)
    driver.offer()
    driver.book(grants(driver)[0], end_in_ms=10)
    driver.wait(10 * MS + LIMITS.overdue_ns)
    assert len(driver.pop(ProbeWorker)) == 1


def test_a_worker_that_was_heard_of_is_not_asked_for() -> None:
    driver = ready()
    driver.wait(MS)
    driver.offer()
    driver.book(grants(driver)[0], end_in_ms=10)
    driver.wait(MS)
    driver.done("w")
    driver.wait(SECOND // 2)
    assert not driver.pop(ProbeWorker)


def test_a_worker_that_is_gone_is_not_granted() -> None:
    driver = ready("w0", "w1")
    driver.gone("w0")
    driver.offer()
    assert granted_to(driver) == [(0, "m", "w1")]
    driver.report("w0")
    driver.offer()
    assert granted_to(driver) == [(0, "m", "w0")]


def test_a_draining_worker_is_not_granted() -> None:
    driver = ready("w0", "w1")
    driver.report("w0", state="draining")
    driver.offer()
    assert granted_to(driver) == [(0, "m", "w1")]


def test_grants_are_numbered_from_the_first_on() -> None:
    driver = ready("w0", "w1")
    driver.offer()
    driver.offer(shard=1)
    assert [grant.grant_id for grant in grants(driver)] == [1, 2]


def test_no_worker_is_advised_that_no_one_shot_model_needs() -> None:
    driver = RankDriver()
    driver.wait(20 * SECOND)
    assert not any(effect.advice.add for effect in driver.pop(PublishAdvice))


def test_advice_comes_once_a_second_and_counts_busy_time() -> None:
    driver = ready()
    driver.wait(3 * SECOND)
    assert len(driver.pop(PublishAdvice)) == 3
