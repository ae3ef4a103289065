"""The figures of CaraServe's single-server evaluation, measured on this machine's CPU."""

from loadtest.figures.base import FigureSet
from loadtest.figures.caraserve.fits import FIGURE_9
from loadtest.figures.caraserve.helpers import FIGURE_16, FIGURE_17, FIGURE_18
from loadtest.figures.caraserve.loads import FIGURE_3
from loadtest.figures.caraserve.popularity import FIGURE_12
from loadtest.figures.caraserve.ranks import FIGURE_4
from loadtest.figures.caraserve.starts import FIGURE_10, FIGURE_11, FIGURE_13

INTRO = (
    "[adapters.md](adapters.md) tells of what is measured here. The paper's numbers are of 7B on "
    "an NVIDIA A10, ours of the CPU that each row names: compare how they grow and what is faster "
    "than what, not milliseconds. The paper's column is empty where its text gives no number; the "
    "text that we have lost many of them. Quick figures come from few repetitions: their last "
    "digits are noise.\n\n"
    "Left out: Figures 5, 19 and 20 (where requests are placed by rank, on a simulated and a real "
    "cluster), the left half of 3 and Figure 14 (production traces), which come with placement; 15 "
    "(two and four GPUs), which comes with tensor parallelism; and 1, 2 and 6 to 8, which are "
    "drawings of a design. There is no column for a GPU yet: none was at hand."
)
SET = FigureSet(
    name="caraserve",
    title="Figures of the CaraServe paper, drawn again",
    intro=INTRO,
    figures=(
        FIGURE_3,
        FIGURE_4,
        FIGURE_9,
        FIGURE_10,
        FIGURE_11,
        FIGURE_12,
        FIGURE_13,
        FIGURE_16,
        FIGURE_17,
        FIGURE_18,
    ),
    is_timed=True,
)
