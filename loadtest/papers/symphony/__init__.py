"""The figures of SYMPHONY's evaluation, from data, latency profiles and the simulated cluster."""

from loadtest.papers.base import FigureSet
from loadtest.papers.symphony.ablations import FIGURE_17
from loadtest.papers.symphony.company import FIGURE_16
from loadtest.papers.symphony.costs import FIGURE_2, FIGURE_4, FIGURE_6
from loadtest.papers.symphony.data import FIGURE_3, FIGURE_5
from loadtest.papers.symphony.hardships import FIGURE_19, FIGURE_20, FIGURE_21
from loadtest.papers.symphony.loads import FIGURE_1, FIGURE_15
from loadtest.papers.symphony.others import FIGURE_LOADS
from loadtest.papers.symphony.systems import (
    FIGURE_11,
    FIGURE_12,
    FIGURE_13,
    FIGURE_14,
    FIGURE_18,
    FIGURE_70B,
)

INTRO = (
    "Production cores of all services on a simulated cluster in virtual time (`bench cluster`): 2 "
    "hosts with 4 A100 of 80 GB each, 256 GB of memory, 4 TB of disk, a link of 100 Gb/s. Disks, "
    "connections between kvstores, PCIe, write-behind and the hosts' own time are as fast as ours "
    "were measured to be (`loadtest/cluster/measured.py` names each measurement). Other systems "
    "are placement policies with parts switched off, not those systems' own code, so compare "
    "shapes and ratios. The paper's column is empty where its text gives no number; where it "
    "contradicts itself, both are there, with the section. A run counts what happens once "
    "everybody has begun, for two minutes. *history* is where the KV came from of what had been "
    "computed before: still in the GPU's pool, loaded from host memory, disk or the other host "
    "(for a hint or for a turn), or computed again; of the most users, and of ours where a row "
    "compares. A row is *met* or *missed* only if at least 20% of that history was not in the "
    "pool; else its load does not touch what it is about: *not exercised*. Quick figures come "
    "from half of each host and of the users (the users in the tables are those of the whole): "
    "their last digits are noise. Ranges are over the numbers of users "
    "of the same figure.\n\nLeft out: Figures 7 to 10, which are drawings of a design."
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
        FIGURE_70B,
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
