"""Clusters of emulated GPUs in virtual time, scheduled by the production batching cores.

`scenario.py` is where to begin: it says what is simulated. `simulation.py` is the loop; `checks.py`
is what must hold of every run.
"""

from loadtest.simulator.checks import Violation
from loadtest.simulator.models import SimModel, linear_model, zoo_models
from loadtest.simulator.results import Result
from loadtest.simulator.scenario import Scenario
from loadtest.simulator.search import Goodput, find_goodput

__all__ = [
    "Goodput",
    "Result",
    "Scenario",
    "SimModel",
    "Violation",
    "find_goodput",
    "linear_model",
    "zoo_models",
]
