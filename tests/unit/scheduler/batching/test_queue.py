"""One model's queue: its order, and what it remembers of losses."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.batching.gathering import AllowanceGathering, PrefixGathering
from services.scheduler.core.batching.job import NEVER_NS, Delays, Job
from services.scheduler.core.batching.queue import (
    ACTIVE_NS,
    HORIZON_NS,
    LOSS_SHARE,
    RATE_NS,
    ModelQueue,
)
from services.scheduler.core.batching.windows import DeferredWindow
from services.scheduler.policies import make_batcher
from tests.unit.scheduler.batching.driver import Player, linear

MS = 1_000_000
SECOND = 1000 * MS


def make_queue() -> ModelQueue:
    spec = linear("m", 1, 5, slo_ns=20)
    return ModelQueue(spec, DeferredWindow(), PrefixGathering(), Delays())


def append(queue: ModelQueue, deadline_ns: int) -> Job:
    job = Job("m", deadline_ns, 0)
    queue.jobs.append(job)
    queue.tail_ns = deadline_ns
    return job


def test_insert_keeps_the_order_of_deadlines_and_of_arrival_where_they_are_equal() -> None:
    queue = make_queue()
    first, last = append(queue, 10), append(queue, 30)
    second, head = Job("m", 10, 1), Job("m", 5, 2)
    queue.insert(second)
    queue.insert(head)
    assert list(queue.jobs) == [head, first, second, last]
    assert list(queue.jobs)[:2] == [head, first]


def test_pop_takes_from_the_head() -> None:
    queue = make_queue()
    jobs = [append(queue, deadline_ns) for deadline_ns in (10, 20, 30)]
    assert queue.pop(2) == jobs[:2]
    assert list(queue.jobs) == jobs[2:]


def test_remove_takes_one_job_wherever_it_is() -> None:
    queue = make_queue()
    jobs = [append(queue, deadline_ns) for deadline_ns in (10, 20, 30)]
    assert queue.remove(jobs[1])
    assert not queue.remove(jobs[1])
    assert list(queue.jobs) == [jobs[0], jobs[2]]
    assert queue.remove(jobs[2])
    assert queue.tail_ns == 10


def lose(queue: ModelQueue, num_jobs: int, num_bad: int) -> None:
    for _ in range(num_jobs):
        append(queue, 10)
    queue.pop(num_jobs)
    queue.num_bad += num_bad


def test_there_is_room_to_lose_nearly_one_percent_of_the_recent_jobs() -> None:
    queue = make_queue()
    queue.room_to_lose(0)  # begins to count
    lose(queue, 1000, 0)
    assert queue.room_to_lose(HORIZON_NS) == LOSS_SHARE * 1000
    lose(queue, 0, 4)
    assert queue.room_to_lose(HORIZON_NS) == LOSS_SHARE * 1000 - 4
    lose(queue, 0, 6)
    assert queue.room_to_lose(HORIZON_NS) == inf  # spent: there is no promise left to keep


def test_the_first_moments_speak_for_a_whole_horizon_but_no_more_than_a_second_would() -> None:
    queue = make_queue()
    queue.room_to_lose(0)
    lose(queue, 100, 0)
    assert queue.room_to_lose(1) == LOSS_SHARE * 100 * HORIZON_NS / RATE_NS


def test_facts_are_told_when_they_are_news() -> None:
    queue = make_queue()
    assert queue.new_facts(1, 5) is None  # begins to count
    lose(queue, 400, 0)
    assert queue.new_facts(1, 5 + RATE_NS // 2) is None  # too soon
    spec = queue.new_facts(1, 5 + 2 * RATE_NS)
    assert spec is not None
    assert (spec.rate_rps, spec.num_models) == (200, 1)

    queue.tune(spec, queue.window, queue.gathering, 1)
    lose(queue, 210, 0)
    assert queue.new_facts(1, 5 + 3 * RATE_NS) is None  # as before, nearly
    lose(queue, 210, 0)
    other = queue.new_facts(2, 5 + 4 * RATE_NS)
    assert other is not None
    assert other.num_models == 2


def test_room_is_infinite_once_the_promise_is_broken() -> None:
    queue = make_queue()
    queue.room_to_lose(0)  # begins to count
    lose(queue, 1000, int(LOSS_SHARE * 1000) + 1)
    assert queue.room_to_lose(HORIZON_NS) == inf


def test_losses_are_forgotten_in_time() -> None:
    queue = make_queue()
    queue.room_to_lose(0)  # begins to count
    lose(queue, 1000, 100)
    assert queue.room_to_lose(HORIZON_NS) == inf
    now_ns = HORIZON_NS
    for _ in range(20):
        now_ns += 2 * HORIZON_NS
        lose(queue, 2000, 0)
        room = queue.room_to_lose(now_ns)
    assert 0 < room < inf


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 20), st.integers(0, 3 * HORIZON_NS))))
def test_room_is_never_negative(history: list[tuple[int, int, int]]) -> None:
    queue, now_ns = make_queue(), 0
    for num_jobs, num_bad, passed_ns in history:
        now_ns += passed_ns
        lose(queue, num_jobs, min(num_bad, num_jobs))
        assert queue.room_to_lose(now_ns) >= 0


def test_how_many_may_wait_is_no_matter_after_a_pause() -> None:
    """One job served in a long time says that one came, not that no more could be served."""
    spec, gathering = linear("m", 1, 5, slo_ns=20), AllowanceGathering(1, 1, 1)
    queue = ModelQueue(spec, DeferredWindow(), gathering, Delays())
    queue.new_facts(1, 0)  # begins to count
    lose(queue, 5, 4)
    queue.new_facts(1, RATE_NS)
    assert queue.num_jobs_max == 1
    lose(queue, 1, 0)
    queue.new_facts(1, RATE_NS + ACTIVE_NS)
    assert queue.room_to_lose(RATE_NS + ACTIVE_NS) == inf
    assert queue.num_jobs_max == NEVER_NS


def test_an_overloaded_queue_refuses_what_it_could_not_serve_in_time() -> None:
    """Twice the jobs that one GPU serves, for some seconds: in the end they are refused when they
    come, and those that are not are served.
    """
    player = Player(make_batcher("steady"))
    player.add_model(linear("a", MS, 10 * MS, slo_ns=100 * MS, size_max=80))
    player.add_gpu(0, ["a"])
    for _ in range(10_000):
        player.advance(player.now_ns + MS // 2)
        player.submit("a", 100 * MS)
    late = [drop for drop in player.dropped if drop.at_ns > 4 * SECOND]
    on_arrival = [drop for drop in late if drop.at_ns == drop.job.arrived_at_ns]
    assert len(on_arrival) > 0.75 * len(late)
