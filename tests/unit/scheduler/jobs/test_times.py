"""How long batches are expected to take, learnt from those that ran."""

from collections.abc import Collection, Hashable, Sequence

from services.scheduler.core.batching.effects import Dispatch, Effect
from services.scheduler.core.batching.job import NEVER_NS, Delays, Job, ModelSpec
from tests.unit.scheduler.jobs.driver import BATCH_NS, MS, SECOND, Driver, ready, with_limits


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


class Ahead:
    """A policy that sends each job at once, to a GPU that may still run the one before."""

    wake_at_ns = NEVER_NS

    def __init__(self, delays: Delays) -> None:
        self._specs: dict[Hashable, ModelSpec] = {}
        self._gpu = self._number = self._free_ns = 0

    def add_model(self, spec: ModelSpec) -> None:
        self._specs[spec.key] = spec

    def add_gpu(self, gpu: int, models: Collection[Hashable], now_ns: int) -> Sequence[Effect]:
        self._gpu = gpu
        return []

    def on_job(self, job: Job, now_ns: int) -> Sequence[Effect]:
        self._number += 1
        start_ns = max(now_ns, self._free_ns)
        self._free_ns = start_ns + self._specs[job.model].batch_ns[1]
        return [Dispatch(self._number, self._gpu, job.model, [job], start_ns, self._free_ns)]

    def num_ahead(self, key: Hashable, deadline_ns: int) -> int:
        return 0

    def nothing(self, *_: object) -> Sequence[Effect]:
        return []

    remove_model = remove_gpu = on_cancel = on_batch_done = on_wake = nothing


def test_a_batch_behind_one_that_ended_early_is_timed_from_that_end() -> None:
    """Every batch takes 5 ms instead of 6. The second one is sent while the first runs, and is
    expected to begin a millisecond later than it does.
    """
    driver = ready(f"{__name__}:Ahead")
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


def test_a_strange_size_teaches_nothing() -> None:
    driver = ready()
    driver.submit("a")
    [(_, start)] = driver.sent()
    driver.done("w", start, size=10**9)
    driver.submit("b")
    [(_, start)] = driver.sent()
    assert start.expected_ns == BATCH_NS[0]


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


def test_a_target_that_was_changed_is_learnt() -> None:
    """A timer waits for the end of the model's own target, where a job's is longer."""
    driver = ready("steady")
    driver.report("w", slo_ms=12, incarnation="2")
    driver.submit("a", slo_ms=1000)
    driver.wait(12 * MS)
    assert driver.sent_jobs() == [("w", ["a"])]
