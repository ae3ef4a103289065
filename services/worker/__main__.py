"""``python -m services.worker``: one worker, configured by ``SYMPHONY_...`` variables."""

from services.worker.config import WorkerConfig
from services.worker.openmp import share_cores
from services.worker.service import main
from shared.service import run

if __name__ == "__main__":
    share_cores()
    run("worker", WorkerConfig, main)
