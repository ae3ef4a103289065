"""The figures of CaraServe: single servers, measured on this machine's CPU, and placement."""

from loadtest.papers.base import FigureSet
from loadtest.papers.caraserve.fits import FIGURE_9
from loadtest.papers.caraserve.growing import FIGURE_3_LEFT, FIGURE_14
from loadtest.papers.caraserve.loads import FIGURE_3
from loadtest.papers.caraserve.placing import FIGURE_19
from loadtest.papers.caraserve.popularity import FIGURE_12
from loadtest.papers.caraserve.ranks import FIGURE_4
from loadtest.papers.caraserve.starts import FIGURE_10, FIGURE_11, FIGURE_13
from loadtest.papers.caraserve.testbed import FIGURE_20

INTRO = (
    "What is measured is described in [adapters.md](adapters.md). The paper's numbers are of 7B on "
    "an NVIDIA A10, ours of the CPU that each figure names, or simulated: compare how they grow "
    "and what is faster than what, not milliseconds.\n\n"
    "Left out: Figures 5, which is a test of placement "
    "(`tests/unit/scheduler/turns/test_ranks_and_targets.py`); 15 (two and four GPUs); "
    "16 to 18 (helper processes beside a GPU); and 1, 2 and 6 to 8, which are drawings of a design."
)
SET = FigureSet(
    name="caraserve",
    title="Figures of the CaraServe paper, drawn again",
    intro=INTRO,
    figures=(
        FIGURE_3_LEFT,
        FIGURE_3,
        FIGURE_4,
        FIGURE_9,
        FIGURE_10,
        FIGURE_11,
        FIGURE_12,
        FIGURE_13,
        FIGURE_14,
        FIGURE_19,
        FIGURE_20,
    ),
    is_timed=True,
)
