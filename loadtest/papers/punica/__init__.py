"""The figures of Punica's single-device evaluation, measured on this machine's CPU."""

from loadtest.papers.base import FigureSet
from loadtest.papers.punica.batching import FIGURE_1
from loadtest.papers.punica.generation import FIGURE_11
from loadtest.papers.punica.layer import FIGURE_10
from loadtest.papers.punica.operators import FIGURE_8, FIGURE_9
from loadtest.papers.punica.roofline import FIGURE_7

INTRO = (
    "What is measured is described in [adapters.md](adapters.md). The paper's numbers are of an "
    "NVIDIA A100, ours of the CPU that each figure names: compare how they grow and what is faster "
    "than what, not milliseconds.\n\n"
    "Left out: Figures 12 (70B on eight GPUs), 13 (a cluster of sixteen), and 2 to 6, which are "
    "drawings of a design."
)
SET = FigureSet(
    name="punica",
    title="Figures of the Punica paper, drawn again",
    intro=INTRO,
    figures=(FIGURE_1, FIGURE_7, FIGURE_8, FIGURE_9, FIGURE_10, FIGURE_11),
    is_timed=True,
)
