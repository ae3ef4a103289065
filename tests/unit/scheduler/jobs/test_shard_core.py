"""A shard's end of the wire to the rank process."""

from services.scheduler.core.jobs import SendBooked, SendOffer
from shared.wire.messages import NO_GRANT, RankBooked, RankOffer
from tests.unit.scheduler.jobs.driver import BATCH_NS, MS, SECOND, ShardDriver, held


def ready(policy: str = "eager") -> ShardDriver:
    driver = ShardDriver(policy)
    driver.report("w")
    return driver


def offers(driver: ShardDriver) -> list[RankOffer]:
    return [effect.offer for effect in driver.pop(SendOffer)]


def booked(driver: ShardDriver) -> list[RankBooked]:
    return [effect.booked for effect in driver.pop(SendBooked)]


def test_an_open_window_is_an_offer() -> None:
    driver = ready()
    driver.submit("a", slo_ms=50)
    [offer] = offers(driver)
    assert (offer.shard, offer.model_id, offer.variant) == (3, "m", 0)
    assert offer.latest_in_ns == 50 * MS - BATCH_NS[0]
    assert offer.seq > 100
    assert not driver.sent()


def test_a_grant_is_a_batch_of_all_that_waits_and_fits() -> None:
    driver = ready()
    driver.submit("a", "b", "c", slo_ms=50)
    driver.wait(20 * MS)
    driver.grant("w", 1, free_in_ms=1)
    [(worker, start)] = driver.sent()
    assert worker == "w"
    assert len(start.jobs) == 3
    assert start.start_in_ns == MS
    assert start.leadership == "shard-3"
    [answer] = booked(driver)
    assert (answer.grant_id, answer.end_in_ns) == (1, MS + BATCH_NS[2])
    assert not answer.is_refused


def test_what_is_left_is_offered_anew_with_a_higher_number() -> None:
    driver = ready()
    driver.submit(*(f"j{number}" for number in range(10)), slo_ms=50)
    [first] = offers(driver)
    driver.grant("w", 1)
    [second] = offers(driver)
    assert second.seq > first.seq
    driver.grant("w", 2)
    assert [len(start.jobs) for _, start in driver.sent()] == [8, 2]


def test_a_grant_that_comes_too_late_is_given_back() -> None:
    driver = ready()
    driver.submit("a", slo_ms=20)
    driver.wait(19 * MS)
    assert driver.dropped() == [("a", "deadline_unreachable")]
    assert offers(driver)[-1].latest_in_ns is None, "the offer is withdrawn"
    driver.grant("w", 1)
    [answer] = booked(driver)
    assert (answer.end_in_ns, answer.is_refused) == (None, False)
    assert not driver.sent()


def test_the_second_copy_of_a_grant_is_void() -> None:
    driver = ready()
    driver.submit(*(f"j{number}" for number in range(10)))
    for _ in range(2):
        driver.grant("w", 1)
    assert len(driver.sent()) == 1
    assert len(booked(driver)) == 1


def test_a_grant_that_a_later_one_overtook_is_void() -> None:
    driver = ready()
    driver.submit(*(f"j{number}" for number in range(10)))
    driver.grant("w", 2)
    driver.grant("w", 1)
    assert len(driver.sent()) == 1


def test_a_worker_that_is_not_there_is_refused_and_another_one_asked_for() -> None:
    driver = ready()
    driver.report("w2")
    driver.gone("w")
    driver.submit("a")
    [first] = offers(driver)
    driver.grant("w", 1)
    [answer] = booked(driver)
    assert answer.is_refused
    [second] = offers(driver)
    assert second.seq > first.seq
    driver.grant("w2", 2)
    assert driver.sent_jobs() == [("w2", ["a"])]


def test_other_shards_batches_do_not_keep_a_worker_from_us() -> None:
    driver = ready()
    driver.report("w", held("shard-2-1-7", "x", leadership="shard-2"))
    driver.submit("a")
    driver.grant("w", 1, free_in_ms=5)
    assert driver.sent_jobs() == [("w", ["a"])]


def test_a_lost_offer_is_made_again_when_less_would_still_be_in_time() -> None:
    driver = ready("deferred-prefix")
    driver.submit("a", "b", slo_ms=50)
    driver.wait(50 * MS - BATCH_NS[2])
    assert [offer.latest_in_ns for offer in offers(driver)] == [BATCH_NS[2] - BATCH_NS[1]]
    driver.wait(BATCH_NS[2] - BATCH_NS[1] + 1)
    assert [offer.latest_in_ns for offer in offers(driver)] == [BATCH_NS[1] - BATCH_NS[0] - 1]
    driver.wait(SECOND)
    assert {job for job, _ in driver.dropped()} == {"a", "b"}


def test_a_cancelled_job_takes_its_offer_back() -> None:
    driver = ready()
    driver.submit("a")
    driver.cancel("a")
    assert [offer.latest_in_ns is None for offer in offers(driver)] == [False, True]


def test_good_and_bad_jobs_are_told_with_the_answers() -> None:
    driver = ready()
    driver.submit("a")
    driver.grant("w", 1)
    [(_, start)] = driver.sent()
    driver.done("w", start)
    driver.submit("late", slo_ms=1)
    driver.submit("b")
    driver.grant("w", 2)
    answers = booked(driver)
    assert [(answer.num_good, answer.num_bad) for answer in answers] == [(0, 0), (1, 1)]


def test_bad_jobs_are_told_although_no_batch_goes_out() -> None:
    driver = ready()
    driver.submit("a", slo_ms=20)
    driver.wait(3 * SECOND)
    told = [(answer.grant_id, answer.num_good, answer.num_bad) for answer in booked(driver)]
    assert told == [(NO_GRANT, 0, 1)]
