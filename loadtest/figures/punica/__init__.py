"""The figures of Punica's single-device evaluation, measured on this machine's CPU."""

from loadtest.figures.base import FigureSet
from loadtest.figures.punica.batching import FIGURE_1
from loadtest.figures.punica.generation import FIGURE_11
from loadtest.figures.punica.layer import FIGURE_10
from loadtest.figures.punica.operators import FIGURE_8, FIGURE_9
from loadtest.figures.punica.roofline import FIGURE_7

INTRO = (
    "[adapters.md](adapters.md) tells of what is measured here. The paper's numbers are of an "
    "NVIDIA A100, ours of the CPU that each row names: compare how they grow and what is faster "
    "than what, not milliseconds. The paper's column is empty where its text gives no number. "
    "Quick figures come from few repetitions: their last digits are noise.\n\n"
    "Left out: Figures 12 (70B on eight GPUs) and 13 (a cluster of sixteen), which come with "
    "tensor parallelism and placement, and Figures 2 to 6, which are drawings of a design. There "
    "is no column for a GPU yet: none was at hand."
)
SET = FigureSet(
    name="punica",
    title="Figures of the Punica paper, drawn again",
    intro=INTRO,
    figures=(FIGURE_1, FIGURE_7, FIGURE_8, FIGURE_9, FIGURE_10, FIGURE_11),
    is_timed=True,
)
