"""A worker that fetches whatever history it is offered, however long that takes: ``python -m
loadtest.bench.eager_worker``. What fetching costs where a worker would rather compute can be
measured on it alone.
"""

from collections.abc import Callable

from services.worker.config import WorkerConfig
from services.worker.core.kv.fetching import Supply
from services.worker.core.turns import history
from services.worker.device.openmp import share_cores
from services.worker.service import main
from shared.service import run


def fetch_all(supply: Supply, compute_ns: Callable[[int], float]) -> int:
    """In place of `services.worker.core.kv.fetching.blocks_to_fetch`."""
    return supply.num_blocks


if __name__ == "__main__":
    share_cores()
    history.blocks_to_fetch = fetch_all  # type: ignore[attr-defined]
    run("worker", WorkerConfig, main)
