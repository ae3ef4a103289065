"""Which images the running turns' adapters have, and which rows of a step run on which."""

from collections.abc import Iterable

import numpy as np

from kernels.sgmv import Segments
from kernels.sgmv.interface import NO_ADAPTER
from kernels.sgmv.tables import Tile, enter_line, make_tables
from services.worker.core.step import ImageEntry, Ints, StepPlan
from services.worker.device.base.step import LoraStep
from shared.adapters.layout import Tile as ImageTile
from shared.adapters.layout import layout_image
from shared.wire.messages import LoraCard


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
