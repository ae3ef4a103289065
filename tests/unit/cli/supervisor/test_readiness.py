"""What each process of a start is said to be doing."""

from typing import Any

import pytest

from cli.base.board import READY, STARTING, Step
from cli.inspection.snapshot import Snapshot
from cli.supervisor.readiness import step_of
from shared.ids import HostId, WorkerId
from shared.wire.messages import SchedulerStatus, StartStage, WorkerStatus

LOADING = StartStage(name="load", model="m", num_done=20_000_000, num_total=90_000_000)
WORKER = WorkerStatus(worker_id=WorkerId("h-w0"), host_id=HostId("h"), state="ready", models=["m"])


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("worker-0", {"stages": {7: LOADING}}, Step("worker-0", "loading m", "20 of 90 MB")),
        ("worker-0", {}, Step("worker-0", STARTING)),
        ("tracker", {"states": {7: "ready"}}, Step("tracker", READY)),
        (
            "frontend",
            {"states": {7: "ready"}},
            Step("frontend", "waiting for workers", "0 of 1 ready", is_waiting=True),
        ),
        (
            "frontend",
            {"states": {7: "ready"}, "scheduler": SchedulerStatus(workers=[WORKER])},
            Step("frontend", "loading the tokenizer of m"),
        ),
        (
            "frontend",
            {
                "states": {7: "ready"}, "scheduler": SchedulerStatus(workers=[WORKER]),
                "models_served": frozenset("m"),
            },
            Step("frontend", READY),
        ),
    ],
)  # fmt: skip
def test_a_process_is_said_to_do_what_it_reports(
    name: str, known: dict[str, Any], expected: Step
) -> None:
    snapshot = Snapshot(**{"states": {7: "starting"}, "scheduler": None, "stores": [], **known})
    assert step_of(name, 7, snapshot, num_workers=1) == expected
