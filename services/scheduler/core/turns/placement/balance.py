"""Even out the requests held and expected: the paper's default policy (SYMPHONY, section 3.3)."""

from collections.abc import Collection

from services.scheduler.core.effects import PlacementReason
from services.scheduler.core.turns.limits import Limits
from services.scheduler.core.turns.placement.policy import Demand
from services.scheduler.core.turns.records import Worker


class Balance:
    """Fewest expected requests first, but a session stays where its KV is while that costs little.

    Load is a worker's turns and live reservations; equal loads are told apart by reservations of
    turns that are far away, which are spread so, by waiting prompt tokens, then by free and clean
    pages, then by id. A session's last worker is preferred while its load is at most
    `affinity_margin` above the least: a turn more there costs less than moving its KV, two or more
    build the imbalance of sticky sessions that the paper measures. If there is no such worker, one
    that holds the turn's adapter is preferred in the same way.
    """

    def __init__(self, limits: Limits) -> None:
        self._affinity_margin = limits.affinity_margin

    def choose(
        self, workers: Collection[Worker], home: Worker | None, demand: Demand
    ) -> tuple[Worker, PlacementReason]:
        best = min(workers, key=_burden)
        num_max = best.num_expected + self._affinity_margin
        if home is not None and home.num_expected <= num_max:
            return home, "affinity"
        if demand.adapter is not None:
            adapter_hash = demand.adapter.adapter_hash
            near = (worker for worker in workers if worker.num_expected <= num_max)
            holders = [worker for worker in near if worker.holds(adapter_hash)]
            if holders:
                return min(holders, key=_burden), "adapter"
        return best, "balance"


def _burden(worker: Worker) -> tuple[int, int, int, int, str]:
    report = worker.report
    num_pages_takeable = report.num_pages_free + report.num_pages_clean
    return (
        worker.num_expected,
        worker.num_far,
        worker.num_waiting_tokens,
        -num_pages_takeable,
        report.worker_id,
    )
