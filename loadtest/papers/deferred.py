"""The figures of the deferred-batching paper."""

from loadtest.papers.base import FigureSet
from loadtest.papers.cases import FIGURE_6, FIGURE_7
from loadtest.papers.changing import FIGURE_15
from loadtest.papers.clusters import FIGURE_9, FIGURE_10, FIGURE_11
from loadtest.papers.overload import FIGURE_2
from loadtest.papers.scale import FIGURE_13, FIGURE_14
from loadtest.papers.shifting import SECTION_4_4
from loadtest.papers.single import FIGURE_1, FIGURE_12, TABLE_2
from loadtest.papers.subclusters import FIGURE_16

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
    SECTION_4_4,
)
SET = FigureSet(
    name="deferred",
    title="Figures of the deferred-batching paper, drawn again",
    intro=INTRO,
    figures=DEFERRED,
    is_timed=False,
)
