"""Rows that a failed one makes void."""

from services.worker.core.step import StepPlan


class Failures:
    """Remembers whose row failed in the last step: what was planned behind it is void, and must not
    wait once more for history that did not come."""

    def __init__(self) -> None:
        self._slots: frozenset[int] = frozenset()

    def void(self, plan: StepPlan) -> set[int]:
        """Rows of the next step that are void from the start."""
        slots: list[int] = plan.slots.tolist()
        return {row for row in plan.following.tolist() if slots[row] in self._slots}

    def keep(self, plan: StepPlan, failed: set[int]) -> None:
        """These rows of a step failed."""
        slots: list[int] = plan.slots.tolist()
        self._slots = frozenset(slots[row] for row in failed)
