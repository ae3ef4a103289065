"""Block tables: which pool page holds which block of a running turn, in each layer; and the token
that was chosen last for it.
"""

import numpy as np

from services.worker.core.step import Ints, Sampled, StepPlan, TableEntries

SLOTS_MIN, BLOCKS_MIN = 8, 64


class BlockTables:
    """One line a running turn, kept between steps: a step brings only what is new.

    Attributes:
        pages: int32 [num_layers, slots, blocks]; grows as entries need it.
        latest: int32 [slots]: a token that the model knows.
    """

    def __init__(self, num_layers: int) -> None:
        self.pages: Ints = np.zeros((num_layers, SLOTS_MIN, BLOCKS_MIN), np.int32)
        self.latest: Ints = np.zeros(SLOTS_MIN, np.int32)

    def enter(self, entries: TableEntries) -> None:
        """Make a plan's entries."""
        if len(entries.slots):
            self._make_room(int(entries.slots.max()) + 1, int(entries.blocks.max()) + 1)
            self.pages[:, entries.slots, entries.blocks] = entries.pages.T

    def tokens(self, plan: StepPlan) -> Ints:
        """int32 [T]: a plan's new tokens, with those that it carries over."""
        if not len(plan.carried):
            return plan.tokens
        tokens = plan.tokens.copy()
        tokens[plan.query_starts[plan.carried + 1] - 1] = self.latest[plan.slots[plan.carried]]
        return tokens

    def keep(self, plan: StepPlan, chosen: list[Sampled | None]) -> None:
        """These tokens were chosen for a plan's rows."""
        for slot, sampled in zip(plan.slots.tolist(), chosen, strict=True):
            if sampled is not None:
                self.latest[slot] = sampled.token

    def _make_room(self, num_slots: int, num_blocks: int) -> None:
        num_layers, old_slots, old_blocks = self.pages.shape
        if num_slots <= old_slots and num_blocks <= old_blocks:
            return
        shape = (num_layers, _doubled(old_slots, num_slots), _doubled(old_blocks, num_blocks))
        grown = np.zeros(shape, np.int32)
        grown[:, :old_slots, :old_blocks] = self.pages
        self.pages = grown
        self.latest = np.concatenate([self.latest, np.zeros(shape[1] - old_slots, np.int32)])


def _doubled(size: int, wanted: int) -> int:
    """`size`, doubled until it is as much as `wanted`.

    >>> _doubled(8, 8), _doubled(8, 33)
    (8, 64)
    """
    while size < wanted:
        size *= 2
    return size


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
