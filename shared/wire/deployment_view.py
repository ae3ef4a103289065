"""What many processes say of themselves, put together as people want to see it."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from shared.ids import TenantId, WorkerId
from shared.wire.messages import HintRate, HintStatus, KvStats, SchedulerStatus, WorkerStatus


def whole_status(parts: list[SchedulerStatus]) -> SchedulerStatus | None:
    """What the schedulers among which turns are divided say together: each knows all turns that a
    worker has, and only the places that it keeps itself. None if there is none.
    """
    if len(parts) < 2:
        return parts[0] if parts else None
    workers: dict[WorkerId, WorkerStatus] = {}
    for status in (worker for part in parts for worker in part.workers):
        known = workers.get(status.worker_id)
        if known is None:
            workers[status.worker_id] = status
            continue
        latest = min(known, status, key=lambda each: each.report_age_ms)
        workers[status.worker_id] = replace(
            latest,
            num_turns=max(known.num_turns, status.num_turns),
            num_reservations=known.num_reservations + status.num_reservations,
        )
    return SchedulerStatus(
        workers=[workers[worker_id] for worker_id in sorted(workers)],
        num_turns_placed=sum(part.num_turns_placed for part in parts),
        num_turns_waiting=sum(part.num_turns_waiting for part in parts),
        num_reservations=sum(part.num_reservations for part in parts),
        windows=[window for part in parts for window in part.windows],
    )


def hints_of(statuses: Sequence[HintStatus]) -> dict[str, Any]:
    """What is known of advisories; each service counts those itself that it throttles."""
    return {
        "live": sum(each.num_live for each in statuses),
        "rates": _rates(statuses),
        "throttled": [asdict(one) for each in statuses for one in each.throttled],
    }


def _rates(statuses: Sequence[HintStatus]) -> list[dict[str, Any]]:
    """Of each tenant that is shown, over the shards of the tracker that know of it."""
    sums: dict[TenantId, tuple[float, float]] = {}
    for rate in (rate for each in statuses for rate in each.rates):
        num_used, num = sums.get(rate.tenant, (0.0, 0.0))
        sums[rate.tenant] = num_used + rate.hits * rate.num_hints, num + rate.num_hints
    rates = [
        HintRate(tenant=tenant, hits=round(num_used / num, 3), num_hints=round(num, 1))
        for tenant, (num_used, num) in sums.items()
        if num
    ]
    return [asdict(rate) for rate in rates]


def tiers_of(stores: Sequence[KvStats]) -> dict[str, dict[str, int]]:
    """What these kvstores hold, by tier."""
    return {
        "arena": {
            "pages": sum(store.arena_pages for store in stores),
            "pages_used": sum(store.arena_pages_used for store in stores),
            "bytes": sum(sum(store.arena_bytes_max.values()) for store in stores),
            "bytes_used": sum(store.arena_bytes_used for store in stores),
            "blocks_pinned": sum(store.arena_blocks_pinned for store in stores),
        },
        "disk": {
            "blocks": sum(store.disk_blocks for store in stores),
            "bytes": sum(store.disk_bytes for store in stores),
            "bytes_max": sum(store.disk_bytes_max for store in stores),
            "pages_corrupt": sum(store.num_corrupt for store in stores),
        },
        "objects": {"bytes": sum(store.objects_bytes for store in stores)},
    }
