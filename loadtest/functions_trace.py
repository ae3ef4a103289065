"""How often functions were called in the Azure Functions trace of 2019: how popular adapters may be
(CaraServe, section 7.1).
"""

import csv
import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cli.base.children import ROOT
from shared.errors import InvalidRequest

TRACE = ROOT.parent / "shared" / "traces" / "functions" / "azure_functions_2019_1250fn_1day.csv.gz"


def calls_in(trace: Path) -> NDArray[np.float64]:
    """Of each function in all minutes.

    Args:
        trace: ``.csv.gz`` with a row a function: its name, then calls in each minute.

    Raises:
        InvalidRequest: it cannot be read.
    """
    try:
        with gzip.open(trace, "rt", newline="") as file:
            rows = csv.reader(file)
            next(rows, None)
            return np.array([sum(map(float, row[1:])) for row in rows], np.float64)
    except (OSError, EOFError, ValueError) as error:
        raise InvalidRequest(
            f"--popularity maf needs the Azure Functions trace: {trace} cannot be read: {error}"
        ) from None
