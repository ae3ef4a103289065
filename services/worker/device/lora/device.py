"""Adapter tables in the device's own memory, which recorded launches read: `tables` for a GPU."""

from dataclasses import replace

import torch

from kernels.sgmv import DeviceSegments
from kernels.sgmv.device import copy_line, make_device_segments, make_device_tables
from kernels.sgmv.interface import NO_ADAPTER
from services.worker.core.step import ImageEntry, Ints, StepPlan
from services.worker.device.base.step import LoraStep
from services.worker.device.lora.tables import LoraLines, segments_in, targets_of
from shared.adapters.layout import layout_image
from shared.wire.messages import LoraCard


class DeviceLines:
    """A line for each adapter that turns run on; never moved, so that graphs may read it.

    Attributes:
        decodes: segments of a recorded step, filled in before it is launched.
    """

    def __init__(self, card: LoraCard, lines_max: int, device: torch.device) -> None:
        targets = [*card.targets, *card.outer]
        largest = layout_image(card, {each.name: card.rank_max for each in targets})
        self._lines = LoraLines(card)
        self._tables = make_device_tables(
            card.num_layers,
            len(targets),
            lines_max=lines_max,
            blocks_max=largest.num_blocks + 1,
            tiles_max=2 * largest.tiles_max + 2,  # where lower ranks begin elsewhere in their pages
            rank_max=card.rank_max,
            device=device,
        )
        self.decodes = make_device_segments(lines_max, lines_max, device)

    @property
    def images(self) -> dict[int, ImageEntry]:
        """By line."""
        return self._lines.images

    def enter(self, images: list[ImageEntry]) -> None:
        """Make a plan's entries, behind what was launched before."""
        self._lines.enter(images)
        for image in images:
            copy_line(self._lines.tables, image.line, self._tables)

    def inputs(self, plan: StepPlan, wanted: list[int]) -> list[Ints]:
        """What a step's rows run on, to be uploaded for `step` or, of a recorded step, `decode`:
        starts and lines of the segments of its tokens, and of the wanted ones."""
        tokens, last = segments_in(plan, wanted)
        return [tokens.starts, tokens.lines, last.starts, last.lines]

    def step(self, plan: StepPlan, inputs: list[torch.Tensor]) -> LoraStep:
        """Any step, whose segments and ranks are known when it is launched."""
        ranks = self._lines.tables.ranks[plan.adapters[plan.adapters != NO_ADAPTER]]
        tables = replace(self._tables, rank_max=int(ranks.max()))
        rows_max = plan.num_tokens
        return LoraStep(
            DeviceSegments(inputs[0], inputs[1], rows_max),
            DeviceSegments(inputs[2], inputs[3], rows_max),
            tables,
            targets_of(ranks),
        )

    def fill_decodes(self, inputs: list[torch.Tensor]) -> None:
        """Enter a recorded step's segments, and pad."""
        starts, lines = inputs[:2]
        count = len(lines)
        self.decodes.starts[: count + 1] = starts
        self.decodes.starts[count + 1 :] = starts[-1]
        self.decodes.lines[:count] = lines
        self.decodes.lines[count:] = NO_ADAPTER

    def decode(self, num_rows: int) -> LoraStep:
        """A recorded step of so many rows."""
        all_rows = self.decodes
        segments = DeviceSegments(
            all_rows.starts[: num_rows + 1], all_rows.lines[:num_rows], num_rows
        )
        return LoraStep(segments, segments, self._tables)
