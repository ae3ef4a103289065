"""A placement policy for tests of several hosts: where a turn goes is known beforehand."""

from collections.abc import Collection
from typing import ClassVar

from services.scheduler.core.base.effects import PlacementReason
from services.scheduler.core.fleet.records import Worker
from services.scheduler.core.placement import Demand, PlacementPolicy

MOVING = f"{__name__}:Moving"
RESTLESS = "restless"  # how names of sessions begin that move


class Moving(PlacementPolicy):
    """On the first worker by name; a restless session's turn, if it can, not where its last ran."""

    hears_hints: ClassVar[bool] = False

    def choose(
        self, workers: Collection[Worker], home: Worker | None, demand: Demand
    ) -> tuple[Worker, PlacementReason]:
        left = home if demand.name.startswith(RESTLESS) else None
        chosen = min(workers, key=lambda worker: (worker is left, worker.report.worker_id))
        return chosen, "balance"
