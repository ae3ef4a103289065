"""What a placement policy is."""

from collections.abc import Collection
from typing import Protocol

from services.scheduler.core.effects import PlacementReason
from services.scheduler.core.turns.records import Worker


class PlacementPolicy(Protocol):
    """Chooses among workers that all can take the turn."""

    def choose(
        self, workers: Collection[Worker], home: Worker | None
    ) -> tuple[Worker, PlacementReason]:
        """The worker for one turn.

        Args:
            workers: at least one; in no order that means anything.
            home: the one of them that ran the session's last turn, so that its pages may still
                hold the session's KV.
        """
        ...
