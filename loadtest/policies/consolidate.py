"""Consolidation (Punica, section 5.1), to compare with: GPUs are filled one after the other, so
that light ones empty and can be given back.
"""

from collections.abc import Collection
from typing import ClassVar

from services.scheduler.core import PlacementPolicy, PlacementReason
from services.scheduler.core.fleet.records import Worker
from services.scheduler.core.placement.policy import Demand

LIGHT_SHARE = 0.5  # of its seats


class Consolidate(PlacementPolicy):
    """The worker with the largest batch that has room, of equal ones that with the highest id; if
    none has room, the turn waits in the scheduler, first come, first served.
    """

    hears_hints: ClassVar[bool] = False
    moves_turns: ClassVar[bool] = True
    gathers_turns: ClassVar[bool] = True

    def gathers(self, worker: Worker, target: Worker) -> bool:
        """Turns of a light worker go where more are, until it is empty."""
        is_light = worker.num_turns <= LIGHT_SHARE * worker.report.turns_running_max
        return is_light and target.num_turns > worker.num_turns

    def has_room(self, worker: Worker, demand: Demand) -> bool:
        """None waits on a worker: it would be sent to a full one and leave the next one empty."""
        num_seats = worker.report.turns_running_max
        return demand.fits(worker) and (not num_seats or worker.num_turns < num_seats)

    def choose(
        self, workers: Collection[Worker], home: Worker | None, demand: Demand
    ) -> tuple[Worker, PlacementReason]:
        return max(workers, key=lambda each: (each.num_turns, each.worker_id)), "balance"
