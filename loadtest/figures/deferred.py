"""The figures of the deferred-batching paper."""

from loadtest.figures.base import FigureSet
from loadtest.figures.cases import FIGURE_6, FIGURE_7
from loadtest.figures.changing import FIGURE_15
from loadtest.figures.clusters import FIGURE_9, FIGURE_10, FIGURE_11
from loadtest.figures.overload import FIGURE_2
from loadtest.figures.scale import FIGURE_13, FIGURE_14
from loadtest.figures.single import FIGURE_1, FIGURE_12, TABLE_2
from loadtest.figures.subclusters import FIGURE_16

INTRO = (
    "Simulated ([simulator.md](simulator.md)). *deferred* is the paper's algorithm as printed, "
    "*steady* is ours and the default."
)
DEFERRED = (
    TABLE_2,
    FIGURE_1,
    FIGURE_2,
    FIGURE_6,
    FIGURE_7,
    FIGURE_9,
    FIGURE_10,
    FIGURE_11,
    FIGURE_12,
    FIGURE_13,
    FIGURE_14,
    FIGURE_15,
    FIGURE_16,
)
SET = FigureSet(
    name="deferred",
    title="Figures of the deferred-batching paper, drawn again",
    intro=INTRO,
    figures=DEFERRED,
    is_timed=False,
)
