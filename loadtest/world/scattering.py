"""A policy for worlds only: turns go anywhere, so that their history is on other hosts."""

from collections.abc import Collection
from random import Random
from typing import ClassVar

from services.scheduler.core import Limits, PlacementPolicy, PlacementReason
from services.scheduler.core.fleet.records import Worker
from services.scheduler.core.placement import Demand

MOVED_SHARE = 0.5  # of turns that could move when their worker reports


class Scattering(PlacementPolicy):
    """Loaded by the scheduler from its settings. Turns do not stay where they are."""

    moves_turns: ClassVar[bool] = True
    gathers_turns: ClassVar[bool] = True

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._random = Random(0)

    def choose(
        self, workers: Collection[Worker], home: Worker | None, demand: Demand
    ) -> tuple[Worker, PlacementReason]:
        """Any of them."""
        del home, demand
        by_id = sorted(workers, key=lambda worker: worker.report.worker_id)
        return self._random.choice(by_id), "balance"

    def gathers(self, worker: Worker, target: Worker) -> bool:
        return self._random.random() < MOVED_SHARE
