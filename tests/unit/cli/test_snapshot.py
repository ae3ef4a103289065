"""What a look at a house tells."""

from cli.inspection.snapshot import Snapshot
from shared.ids import HostId, WorkerId
from shared.messages import SchedulerStatus, WorkerStatus


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


def test_a_house_is_not_ready_while_a_model_of_its_workers_cannot_be_asked() -> None:
    assert snapshot("a").models_missing() == {"b"}
    assert snapshot("b", "a").models_missing() == set()
    assert snapshot(state="loading").models_missing() == set()
