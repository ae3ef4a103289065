"""The figures of SYMPHONY's evaluation, from data, latency profiles and the simulated cluster."""

from loadtest.papers.base import FigureSet
from loadtest.papers.symphony.ablations import FIGURE_17
from loadtest.papers.symphony.company import FIGURE_16
from loadtest.papers.symphony.costs import FIGURE_2, FIGURE_4, FIGURE_6
from loadtest.papers.symphony.data import FIGURE_3, FIGURE_5
from loadtest.papers.symphony.hardships import FIGURE_18, FIGURE_19, FIGURE_20, FIGURE_21
from loadtest.papers.symphony.loads import FIGURE_1, FIGURE_15
from loadtest.papers.symphony.others import FIGURE_LOADS
from loadtest.papers.symphony.systems import FIGURE_11, FIGURE_12, FIGURE_13, FIGURE_14

INTRO = (
    "Production cores of all services on a simulated cluster in virtual time (`bench cluster`): 2 "
    "hosts with 4 A100 of 80 GB each, 256 GB of memory, 4 TB of disk, a link of 100 Gb/s. Other "
    "systems are placement policies with parts switched off, not those systems' own code, so "
    "compare shapes and ratios. The paper's column is empty where its text gives no number; where "
    "it contradicts itself, both are there, with the section. A run counts what happens once "
    "everybody has begun, for a minute. Quick figures come from half of the cluster and of the "
    "users (the users in the tables are those of the whole), and 40 seconds: their last digits are "
    "noise. "
    "Ranges are over the numbers of users of the same figure.\n\n"
    "Left out: Figures 7 to 10, which are drawings of a design."
)
SET = FigureSet(
    name="symphony",
    title="Figures of the SYMPHONY paper, drawn again",
    intro=INTRO,
    figures=(
        FIGURE_1,
        FIGURE_2,
        FIGURE_3,
        FIGURE_4,
        FIGURE_5,
        FIGURE_6,
        FIGURE_11,
        FIGURE_12,
        FIGURE_13,
        FIGURE_14,
        FIGURE_15,
        FIGURE_16,
        FIGURE_17,
        FIGURE_18,
        FIGURE_19,
        FIGURE_20,
        FIGURE_21,
        FIGURE_LOADS,
    ),
    is_timed=False,
)
