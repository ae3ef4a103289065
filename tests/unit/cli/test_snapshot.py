"""What a look at a deployment tells."""

from cli.inspection.snapshot import Snapshot
from shared.ids import HostId, WorkerId
from shared.wire.deployment_view import whole_status
from shared.wire.messages import SchedulerStatus, WorkerStatus


def snapshot(*served: str, state: str = "ready") -> Snapshot:
    worker = WorkerStatus(
        worker_id=WorkerId("w"), host_id=HostId("h"), state=state, models=["a", "b"]
    )
    return Snapshot(
        states={},
        models_served=frozenset(served),
        scheduler=SchedulerStatus(workers=[worker]),
        stores=[],
    )


def test_a_deployment_is_not_ready_while_a_model_of_its_workers_cannot_be_asked() -> None:
    assert snapshot("a").models_missing() == {"b"}
    assert snapshot("b", "a").models_missing() == set()
    assert snapshot(state="loading").models_missing() == set()


def test_schedulers_that_divide_turns_are_told_as_one() -> None:
    def part(num_turns: int, num_reservations: int, age_ms: float) -> SchedulerStatus:
        worker = WorkerStatus(
            worker_id=WorkerId("w"), host_id=HostId("h"), state="ready", num_turns=num_turns,
            num_reservations=num_reservations, report_age_ms=age_ms,
        )  # fmt: skip
        return SchedulerStatus(
            workers=[worker], num_turns_placed=3, num_turns_waiting=1, num_reservations=2
        )

    whole = whole_status([part(5, 1, 9.0), part(6, 2, 4.0)])
    assert whole is not None
    (worker,) = whole.workers
    assert (worker.num_turns, worker.num_reservations, worker.report_age_ms) == (6, 3, 4.0)
    assert (whole.num_turns_placed, whole.num_turns_waiting, whole.num_reservations) == (6, 2, 4)
    assert whole_status([]) is None
    assert whole_status([part(1, 1, 1.0)]) == part(1, 1, 1.0)
