"""What `symphony status` says, as one object."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cli.inspection.snapshot import SERVERS, Snapshot, is_alive
from cli.runfile import RunState
from cli.start.hosts import make_host_ids
from cli.supervisor.condition import assess
from shared.ids import HostId, TenantId
from shared.messages import HintRate, HintStatus, KvStats, WorkerStatus


def process_states(run: RunState, snapshot: Snapshot | None) -> dict[str, str]:
    """What is known of each process that the supervisor has written down, by name."""
    states = snapshot.states if snapshot else {}
    failing = dict.fromkeys(run.failing, "failing")
    return failing | {
        child.name: _process_state(child.name, child.pid, states, child.name in run.silent)
        for child in run.services
    }


def describe(run: RunState, snapshot: Snapshot | None) -> dict[str, Any]:
    """The object that ``status --json`` prints."""
    states = process_states(run, snapshot)
    condition = assess(run, states, snapshot)
    workers = snapshot.scheduler.workers if snapshot and snapshot.scheduler else []
    stores = snapshot.stores if snapshot else []
    pids = {child.name: child.pid for child in run.services}
    return {
        "url": run.url,
        "state": condition.state,
        "reasons": condition.reasons,
        "services": [
            {"name": name, "pid": pids.get(name), "state": state} for name, state in states.items()
        ],
        "workers": [asdict(worker) for worker in workers],
        "hosts": _hosts(run, workers, stores),
        "hints": _hints(snapshot.hints if snapshot else []),
        "sessions": max((store.num_sessions for store in stores), default=0),  # all see one Redis
        "tiers": {
            "gpu": {
                "pages": sum(worker.num_pages for worker in workers),
                "pages_free": sum(worker.num_pages_free for worker in workers),
                "pages_clean": sum(worker.num_pages_clean for worker in workers),
                "pages_dirty": sum(worker.num_pages_dirty for worker in workers),
            },
            **_tiers(stores),
        },
    }


def _hints(told: Sequence[HintStatus]) -> dict[str, Any]:
    """What is known of advisories; each service counts those itself that it throttles."""
    return {
        "live": sum(each.num_live for each in told),
        "rates": _rates(told),
        "throttled": [asdict(one) for each in told for one in each.throttled],
    }


def _rates(told: Sequence[HintStatus]) -> list[dict[str, Any]]:
    """Of each tenant that is shown, over the shards of the tracker that know of it."""
    sums: dict[TenantId, tuple[float, float]] = {}
    for rate in (rate for each in told for rate in each.rates):
        num_used, num = sums.get(rate.tenant, (0.0, 0.0))
        sums[rate.tenant] = num_used + rate.hits * rate.num_hints, num + rate.num_hints
    rates = [
        HintRate(tenant=tenant, hits=round(num_used / num, 3), num_hints=round(num, 1))
        for tenant, (num_used, num) in sums.items()
        if num
    ]
    return [asdict(rate) for rate in rates]


def _hosts(
    run: RunState, workers: Sequence[WorkerStatus], stores: Sequence[KvStats]
) -> list[dict[str, Any]]:
    """Each host that should be there, and others that somebody is on."""
    ours: list[str] = list(make_host_ids(HostId(run.host_id), run.num_hosts))
    heard = {worker.host_id for worker in workers} | {store.host_id for store in stores}
    return [
        {
            "host_id": host_id,
            "has_kvstore": any(store.host_id == host_id for store in stores),
            "workers": [worker.worker_id for worker in workers if worker.host_id == host_id],
            **_tiers([store for store in stores if store.host_id == host_id]),
        }
        for host_id in [*ours, *sorted(heard - {*ours, ""})]
    ]


def _tiers(stores: Sequence[KvStats]) -> dict[str, dict[str, int]]:
    """What these kvstores hold, by tier."""
    return {
        "arena": {
            "pages": sum(store.arena_pages for store in stores),
            "pages_used": sum(store.arena_pages_used for store in stores),
            "bytes": sum(store.arena_bytes for store in stores),
            "bytes_used": sum(store.arena_bytes_used for store in stores),
            "blocks_pinned": sum(store.arena_blocks_pinned for store in stores),
        },
        "disk": {
            "blocks": sum(store.disk_blocks for store in stores),
            "bytes": sum(store.disk_bytes for store in stores),
            "pages_corrupt": sum(store.num_corrupt for store in stores),
        },
        "objects": {"bytes": sum(store.objects_bytes for store in stores)},
    }


def _process_state(name: str, pid: int, states: dict[int, str], is_silent: bool) -> str:
    if not is_alive(pid):
        return "dead"
    if is_silent and pid not in states:
        return "silent"
    # Of servers that they run is all there is to know.
    return "running" if name in SERVERS else states.get(pid, "starting")
