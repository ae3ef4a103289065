"""Placements for ablations alone."""

from collections.abc import Collection
from typing import ClassVar

from services.scheduler.core.effects import PlacementReason
from services.scheduler.core.turns.placement.policy import Demand
from services.scheduler.core.turns.placement.symphony import Symphony
from services.scheduler.core.turns.records import Worker


class Home(Symphony):
    """Ours without its balance: a session stays where its first turn went."""

    leaves_home: ClassVar[bool] = False

    def choose(
        self, workers: Collection[Worker], home: Worker | None, demand: Demand
    ) -> tuple[Worker, PlacementReason]:
        if home is not None:
            return home, "affinity"
        return super().choose(workers, home, demand)

    def better_than(
        self, kept: Worker, workers: Collection[Worker], demand: Demand, *, is_sent: bool
    ) -> Worker | None:
        return None
