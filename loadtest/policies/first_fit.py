"""First-fit bin packing (CaraServe, section 7.5), to compare with."""

from collections.abc import Collection
from typing import ClassVar

from services.scheduler.core import PlacementPolicy, PlacementReason
from services.scheduler.core.fleet.records import Worker
from services.scheduler.core.placement.policy import Demand


class FirstFit(PlacementPolicy):
    """The first worker that has room, in the order of their ids."""

    hears_hints: ClassVar[bool] = False

    def choose(
        self, workers: Collection[Worker], home: Worker | None, demand: Demand
    ) -> tuple[Worker, PlacementReason]:
        return min(workers, key=lambda each: each.worker_id), "balance"
