"""Balance the turns held and expected: the paper's own policy (SYMPHONY, section 3.3)."""

from collections.abc import Collection, Mapping

from services.scheduler.core.base.effects import PlacementReason
from services.scheduler.core.fleet.records import Worker
from services.scheduler.core.placement.policy import Demand, PlacementPolicy, burden
from shared.ids import HostId


class Balance(PlacementPolicy):
    """Fewest expected turns first, but a session stays with its KV while that costs little.

    Load is a worker's turns and near reservations. Ties are broken by far reservations, then by
    waiting prompt tokens, by free and clean pages, and by id. A session's last worker is preferred
    while its load is at most `affinity_margin` above the least: one more turn there costs less than
    moving its KV, two or more build up the imbalance of sticky sessions that the paper measures.
    Without such a worker, those on the hosts with the most of the session's KV are preferred in
    the same way, and among them one that holds the turn's adapter.
    """

    def choose(
        self, workers: Collection[Worker], home: Worker | None, demand: Demand
    ) -> tuple[Worker, PlacementReason]:
        best = min(workers, key=burden)
        num_max = best.num_expected + self._limits.affinity_margin
        if home is not None and home.num_expected <= num_max:
            return home, "affinity"
        if not demand.kv_at and demand.adapter is None:
            return best, "balance"
        near = [worker for worker in workers if worker.num_expected <= num_max]
        beside = _beside_kv(near, demand.kv_at)
        if demand.adapter is not None:
            adapter_hash = demand.adapter.adapter_hash
            if holders := [worker for worker in beside if worker.holds(adapter_hash)]:
                return min(holders, key=burden), "adapter"
        return min(beside, key=burden), "kv" if len(beside) < len(near) else "balance"


def _beside_kv(workers: list[Worker], kv_at: Mapping[HostId, int]) -> list[Worker]:
    """The workers on hosts with the most blocks; all of them if no host has any."""
    num_blocks = [kv_at.get(worker.report.host_id, 0) for worker in workers]
    most = max(num_blocks)
    return [worker for worker, num in zip(workers, num_blocks, strict=True) if num == most]
