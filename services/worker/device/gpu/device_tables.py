"""Block tables in the device's own memory, which recorded launches read: `tables` for a GPU."""

import torch

from services.worker.core.step import TableEntries


class DeviceTables:
    """One line a running turn, kept between steps; never moved, so that graphs may read it.

    Attributes:
        pages: int32 ``[num_layers, num_slots, num_blocks]``.
        latest: int32 ``[num_slots]``: the token that was chosen last for a line.
    """

    def __init__(
        self, num_layers: int, num_slots: int, num_blocks: int, device: torch.device
    ) -> None:
        shape = (num_layers, num_slots, num_blocks)
        self.pages = torch.zeros(shape, dtype=torch.int32, device=device)
        self.latest = torch.zeros(num_slots, dtype=torch.int32, device=device)

    def check(self, entries: TableEntries) -> None:
        """See that there is a place for every entry.

        Raises:
            AssertionError: there is none.
        """
        _, num_slots, num_blocks = self.pages.shape
        if len(entries.slots):
            assert entries.slots.max() < num_slots, "more turns than the tables have lines"
            assert entries.blocks.max() < num_blocks, "a longer turn than the tables have room for"

    def enter(self, slots: torch.Tensor, blocks: torch.Tensor, pages: torch.Tensor) -> None:
        """Make entries: int32 ``[n]``, ``[n]`` and ``[n, num_layers]``."""
        self.pages[:, slots, blocks] = pages.T
