"""Orders to load one-shot models: who gets which, and what becomes of jobs meanwhile."""

from dataclasses import replace

import pytest

from services.scheduler.core.base.effects import ProbeWorker
from services.scheduler.core.jobs import SendHold
from services.scheduler.core.partition.limits import SubclusterLimits
from services.scheduler.core.partition.solving import SolvePartition, solve
from shared.ids import ModelId, WorkerId
from shared.wire.messages import OneshotLack
from tests.unit.scheduler.jobs.driver import (
    LIMITS,
    MS,
    SECOND,
    Driver,
    ShardDriver,
    batch_done,
    with_limits,
)

QUICK = SubclusterLimits(learning_ns=SECOND, window_ns=5 * SECOND, forget_ns=5 * SECOND)
SIZE = 100


class Ordering(Driver):
    """Workers that obey at once unless they are told otherwise.

    Attributes:
        holds: models loaded, by worker.
        orders: sent, oldest first.
    """

    def __init__(self, *workers: str, models: str = "ab", memory: int = 130) -> None:
        super().__init__(limits=replace(LIMITS, subclusters=QUICK))
        self.holds: dict[str, set[str]] = {worker: set() for worker in workers}
        self.lacks: dict[str, list[str]] = {}
        self.models, self.memory = models, memory
        self.unmanaged: set[str] = set()
        self.orders: list[tuple[str, set[str]]] = []
        self.obeying = True

    def tell(self, worker: str, **more: object) -> None:
        """One report."""
        report = self.reports.make(worker, models=self.models, **more)  # type: ignore[arg-type]
        cards = [
            replace(card, is_loaded=card.model_id in self.holds[worker], static_bytes=SIZE)
            for card in report.oneshot
        ]
        lacks = [OneshotLack(model_id=ModelId(m), reason="") for m in self.lacks.get(worker, [])]
        memory = self.memory if worker not in self.unmanaged else 0
        report = replace(report, oneshot=cards, oneshot_bytes=memory, oneshot_lacks=lacks)
        self.take(self.core.on_report(report, self.now_ns))

    def run(self, seconds: int) -> None:
        """Reports, time, orders and their execution."""
        for _ in range(seconds):
            for worker in self.holds:
                self.tell(worker)
            self.wait(SECOND)
            for request in self.pop(SolvePartition):
                self.take(self.core.on_partition(solve(request), self.now_ns))
            for hold in self.pop(SendHold):
                models = {str(model) for model in hold.order.models}
                self.orders.append((hold.worker_id, models))
                if self.obeying:
                    self.holds[hold.worker_id] = models


def test_empty_workers_are_ordered_to_load_everything() -> None:
    it = Ordering("v", "w")
    it.run(4)
    assert sorted(map(sorted, it.holds.values())) == [["a"], ["b"]]
    it.orders.clear()
    it.run(30)
    assert not it.orders  # they hold what they were told


def test_unloaded_models_get_no_batch() -> None:
    it = Ordering("v", "w")
    it.obeying = False
    it.tell("w")
    it.submit("1", model="a", slo_ms=500)
    it.wait(200 * MS)
    assert it.sent() == [] and it.dropped() == []  # it waits for a load
    it.holds["w"] = {"a"}
    it.tell("w")
    assert it.sent_jobs() == [("w", ["1"])]


def test_a_job_whose_model_is_not_loaded_in_time_is_told_so() -> None:
    it = Ordering("w")
    it.tell("w")
    it.submit("1", model="a", slo_ms=50)
    it.wait(100 * MS)
    assert it.dropped() == [("1", "no_worker")]


def test_a_job_for_what_no_worker_can_load_is_refused_at_once() -> None:
    it = Ordering("w")
    it.lacks["w"] = ["a"]
    it.tell("w")
    it.submit("1", model="a", slo_ms=500)
    assert it.dropped() == [("1", "no_worker")]


def test_waiting_jobs_end_when_the_only_worker_that_could_load_dies() -> None:
    it = Ordering("w")
    it.tell("w")
    it.submit("1", model="a", slo_ms=500)
    it.gone("w")
    assert it.dropped() == [("1", "no_worker")]


def test_a_worker_that_holds_nothing_is_probed_when_it_is_silent() -> None:
    it = Ordering("w")
    it.tell("w")
    it.wait(3 * SECOND)
    assert ProbeWorker(WorkerId("w")) in it.effects


def test_a_model_that_is_to_go_gets_no_batch_from_the_order_on() -> None:
    it = Ordering("u", "v", "w")
    it.run(8)
    before = {worker: set(models) for worker, models in it.holds.items()}
    hot = "b" if sum("a" in models for models in it.holds.values()) > 1 else "a"
    it.obeying = False
    for second in range(20):
        for number in range(50):
            it.submit(f"{second}-{number}", model=hot, slo_ms=400)
        it.run(1)
        if any(models != before[worker] for worker, models in it.orders if before[worker]):
            break
    worker, models = it.orders[-1]
    assert models == {hot} and before[worker] != {hot}
    [other] = before[worker]
    it.sent()
    keys = {key.model_id for key in it.core.devices[WorkerId(worker)].keys}  # type: ignore[attr-defined]
    assert other not in keys
    it.tell(worker)  # it has not obeyed yet
    keys = {key.model_id for key in it.core.devices[WorkerId(worker)].keys}  # type: ignore[attr-defined]
    assert other not in keys


def test_jobs_and_batches_are_the_load() -> None:
    it = Ordering("w", models="a", memory=1000)
    it.run(3)
    for number in range(40):
        it.submit(f"{number}", model="a", slo_ms=2000)
        for worker, start in it.sent():
            it.done(worker, start)
    it.run(1)
    assert it.core._orders._subclusters.loads.load(ModelId("a")) > 0.01


def test_a_worker_without_a_bound_gets_no_order_and_others_do() -> None:
    it = Ordering("v", "w")
    it.unmanaged, it.holds["w"] = {"w"}, {"a", "b"}
    it.run(10)
    assert {worker for worker, _ in it.orders} == {"v"}
    it.submit("1", model="b")
    [(_, [job])] = it.sent_jobs()
    assert job == "1"


def test_a_new_leader_starts_from_what_workers_hold() -> None:
    it = Ordering("v", "w")
    it.run(6)
    holds = {worker: set(models) for worker, models in it.holds.items()}
    it.orders.clear()
    it.core = it.make_core("eager", fence=2)
    it.wake()
    it.run(30)
    assert it.holds == holds and not it.orders


def test_workers_with_memory_for_all_hold_all() -> None:
    it = Ordering("v", "w", memory=230)
    it.run(6)
    assert it.holds == {"v": {"a", "b"}, "w": {"a", "b"}}


@pytest.mark.parametrize("end", ["draining", "dead"])
def test_what_only_an_ended_worker_held_is_loaded_elsewhere(end: str) -> None:
    it = Ordering("u", "v", "w")
    it.run(8)
    lonely = next(w for w, m in it.holds.items() if list(it.holds.values()).count(m) == 1)
    if end == "dead":
        it.gone(lonely)
    else:
        it.tell(lonely, state="draining")
    [model] = it.holds.pop(lonely)
    it.run(15)
    assert model in set().union(*it.holds.values())
    assert lonely not in {worker for worker, _ in it.orders[3:]}


def test_a_shard_orders_nothing_and_lets_no_job_wait_for_a_load() -> None:
    it = ShardDriver(limits=with_limits())
    report = it.reports.make("w")
    cards = [replace(card, is_loaded=False) for card in report.oneshot]
    it.take(it.core.on_report(replace(report, oneshot=cards, oneshot_bytes=500), it.now_ns))
    it.submit("1")
    assert it.dropped() == [("1", "no_worker")]
    it.wait(5 * SECOND)
    assert not it.pop(SendHold) and not it.pop(SolvePartition)


@pytest.mark.parametrize("size", [0, 1])
def test_a_batch_of_nothing_says_nothing_about_time(size: int) -> None:
    it = Ordering("w", models="m", memory=1000)
    it.run(4)
    it.submit("1", slo_ms=500)
    [(worker, start)] = it.sent()
    done = replace(batch_done(worker, start.batch_id, size=size), run_ns=size)
    it.take(it.core.on_batch_done(done, it.now_ns))
    assert it.core._orders._subclusters.loads._sums[ModelId("m")].num_ran == 1 + size
