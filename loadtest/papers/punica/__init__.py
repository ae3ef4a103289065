"""The figures of Punica: single devices, measured on this machine's CPU, and several, simulated."""

from loadtest.papers.base import FigureSet
from loadtest.papers.punica.batching import FIGURE_1
from loadtest.papers.punica.cluster import FIGURE_13
from loadtest.papers.punica.generation import FIGURE_11
from loadtest.papers.punica.layer import FIGURE_10
from loadtest.papers.punica.operators import FIGURE_8, FIGURE_9
from loadtest.papers.punica.roofline import FIGURE_7
from loadtest.papers.punica.tensor_parallel import FIGURE_12

INTRO = (
    "What is measured is described in [adapters.md](adapters.md). The paper's numbers are of an "
    "NVIDIA A100, ours of the CPU that each figure names, or simulated: compare how they grow and "
    "what is faster than what, not milliseconds.\n\n"
    "Left out: Figures 2 to 6, which are drawings of a design."
)
SET = FigureSet(
    name="punica",
    title="Figures of the Punica paper, drawn again",
    intro=INTRO,
    figures=(FIGURE_1, FIGURE_7, FIGURE_8, FIGURE_9, FIGURE_10, FIGURE_11, FIGURE_12, FIGURE_13),
    is_timed=True,
)
