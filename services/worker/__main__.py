"""``python -m services.worker``: one worker, configured by ``SYMPHONY_...`` variables."""

import sys

from services.worker.config import WorkerConfig
from services.worker.device.openmp import share_cores
from services.worker.service import main
from shared.service import run

SWITCH_S = 0.0005  # at most so long a thread that launches steps or moves pages keeps others out

if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_S)
    share_cores()
    run("worker", WorkerConfig, main)
