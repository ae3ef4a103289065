"""Which images the running turns' adapters have, and which rows of a step run on which."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch

from kernels.sgmv import DeviceSegments, Segments
from kernels.sgmv.device import copy_line, make_device_tables
from kernels.sgmv.interface import NO_ADAPTER
from kernels.sgmv.tables import Tile, enter_line, make_tables
from services.worker.core.step import ImageEntry, Ints, StepPlan
from services.worker.device.base.step import LoraStep
from shared.adapters.layout import Tile as ImageTile
from shared.adapters.layout import layout_image
from shared.wire.messages import LoraCard

RANK_MIN = 16  # that recorded steps have room for at least: kernels multiply as many rows at once


class LoraLines:
    """The adapter tables of an executor on a CPU, kept between steps.

    Args:
        rows_max: of a segment; 0: any number.

    Attributes:
        images: by line, what was entered last.
    """

    def __init__(self, card: LoraCard, rows_max: int = 0) -> None:
        self._card = card
        self._rows_max = rows_max
        self.images: dict[int, ImageEntry] = {}
        self.tables = make_tables(card.num_layers, len(card.targets) + len(card.outer))

    def enter(self, images: list[ImageEntry]) -> None:
        """Make a plan's entries."""
        for image in images:
            self.images[image.line] = image
            targets = layout_image(self._card, image.ranks).targets
            enter_line(
                self.tables,
                image.line,
                [each.rank for each in targets],
                [_tiles(each.a) for each in targets],
                [_tiles(each.b) for each in targets],
                image.pages.T.tolist(),
            )

    def step(self, plan: StepPlan, wanted: list[int]) -> LoraStep | None:
        """What a plan's rows run on; None: on the base model, all of them.

        Args:
            wanted: numbers of the new tokens whose logits are computed.
        """
        lines = plan.adapters[plan.adapters != NO_ADAPTER]
        if not len(lines):
            return None
        return LoraStep(
            *segments_in(plan, wanted, self._rows_max),
            self.tables,
            targets_of(self.tables.ranks[lines]),
        )


def bits_of(targets: Iterable[int]) -> int:
    """A set of targets, by their numbers, as one number; `ALL_TARGETS` is one that has them all.

    >>> bits_of([0, 3])
    9
    """
    return sum(1 << target for target in targets)


def targets_of(ranks: Ints) -> int:
    """What some of these adapters have, see `bits_of`.

    Args:
        ranks: ``[num_adapters, num_targets]``.
    """
    return bits_of(np.flatnonzero(ranks.any(0)).tolist())


def segments_in(plan: StepPlan, wanted: list[int], rows_max: int = 0) -> tuple[Segments, Segments]:
    """The segments of a plan's new tokens, and of those of them whose logits are wanted."""
    of_token = np.repeat(plan.adapters, plan.lengths)
    return segments_of(of_token, rows_max), segments_of(of_token[wanted], rows_max)


def segments_of(lines: Ints, rows_max: int = 0) -> Segments:
    """Runs of equal lines.

    Args:
        rows_max: a run is cut at each multiple of it; 0: nowhere.

    >>> segments_of(np.array([2, 2, -1, 0], np.int32)).starts.tolist()
    [0, 2, 3, 4]
    """
    is_cut = lines[1:] != lines[:-1]
    if rows_max:
        is_cut[rows_max - 1 :: rows_max] = True
    cuts = np.flatnonzero(is_cut) + 1
    starts = np.concatenate([[0], cuts, [len(lines)]]).astype(np.int32)
    return Segments(starts, lines[starts[:-1]])


def _tiles(tiles: tuple[ImageTile, ...]) -> list[Tile]:
    return [(t.layer, t.block, t.offset, t.row, t.num_rows, t.column, t.num_columns) for t in tiles]


class DeviceLines:
    """A line for each adapter that turns run on; never moved, so that graphs may read it."""

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

    @property
    def images(self) -> dict[int, ImageEntry]:
        """By line."""
        return self._lines.images

    def enter(self, images: list[ImageEntry]) -> None:
        """Make a plan's entries, behind what was launched before."""
        self._lines.enter(images)
        for image in images:
            copy_line(self._lines.tables, image.line, self._tables)

    def rank_of(self, plan: StepPlan) -> int:
        """No adapter of a plan's rows has a higher one: a power of two; 0: there are none."""
        lines = plan.adapters[plan.adapters != NO_ADAPTER]
        if not len(lines):
            return 0
        highest = max(int(self._lines.tables.ranks[lines].max()), RANK_MIN)
        return 1 << (highest - 1).bit_length()

    def inputs(self, plan: StepPlan, wanted: list[int]) -> list[Ints]:
        """What a step's rows run on, to be uploaded for `step`: starts and lines of the segments of
        its tokens, and of the wanted ones."""
        tokens, last = segments_in(plan, wanted)
        return [tokens.starts, tokens.lines, last.starts, last.lines]

    def step(self, plan: StepPlan, inputs: list[torch.Tensor]) -> LoraStep:
        """Any step, whose segments and ranks are known when it is launched."""
        ranks = self._lines.tables.ranks[plan.adapters[plan.adapters != NO_ADAPTER]]
        tables = replace(self._tables, rank_max=int(ranks.max()))
        return LoraStep(
            DeviceSegments(inputs[0], inputs[1]),
            DeviceSegments(inputs[2], inputs[3]),
            tables,
            targets_of(ranks),
        )

    def recorded(self, segments: DeviceSegments, last: DeviceSegments, rank: int) -> LoraStep:
        """A step that is launched again and again, on segments that change in place.

        Args:
            segments, last: of all tokens, and of the wanted ones.
            rank: of any adapter, at most.
        """
        return LoraStep(segments, last, replace(self._tables, rank_max=rank))
