"""What `symphony status` says, as one object."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cli.base.runfile import RunState
from cli.inspection.capacity import capacity_of
from cli.inspection.condition import assess
from cli.inspection.snapshot import SERVERS, Snapshot, is_alive
from cli.start.hosts import make_host_ids
from shared.ids import HostId
from shared.runtime.stages import count_text, stage_text
from shared.runtime.urls import hide_password
from shared.wire.deployment_view import hints_of, tiers_of
from shared.wire.messages import KvStats, WorkerStatus


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
        "nats_url": hide_password(run.nats_url),
        "state": condition.state,
        "reasons": condition.reasons,
        "services": [
            {
                "name": name,
                "pid": pids.get(name),
                "state": state,
                "stage": _stage(pids.get(name), snapshot),
            }
            for name, state in states.items()
        ],
        "workers": [asdict(worker) for worker in workers],
        "hosts": _hosts(run, workers, stores),
        "hints": hints_of(snapshot.hints if snapshot else []),
        "sessions": max((store.num_sessions for store in stores), default=0),  # all see one Redis
        "tiers": {
            "gpu": {
                "pages": sum(worker.num_pages for worker in workers),
                "pages_free": sum(worker.num_pages_free for worker in workers),
                "pages_clean": sum(worker.num_pages_clean for worker in workers),
                "pages_dirty": sum(worker.num_pages_dirty for worker in workers),
            },
            **tiers_of(stores),
        },
        "capacity": capacity_of(snapshot.pools, stores) if snapshot else [],
    }


def _hosts(
    run: RunState, workers: Sequence[WorkerStatus], stores: Sequence[KvStats]
) -> list[dict[str, Any]]:
    """Each host that should be there, and others that report."""
    ours: list[str] = list(make_host_ids(HostId(run.host_id), run.num_hosts))
    reported = {worker.host_id for worker in workers} | {store.host_id for store in stores}
    return [
        {
            "host_id": host_id,
            "has_kvstore": any(store.host_id == host_id for store in stores),
            "workers": [worker.worker_id for worker in workers if worker.host_id == host_id],
            **tiers_of([store for store in stores if store.host_id == host_id]),
        }
        for host_id in [*ours, *sorted(reported - {*ours, ""})]
    ]


def _stage(pid: int | None, snapshot: Snapshot | None) -> str:
    """What a process that starts is doing, and for how long; empty: it does not say."""
    stage = snapshot.stages.get(pid) if snapshot and pid is not None else None
    if stage is None:
        return ""
    count = count_text(stage)
    return f"{stage_text(stage)}{', ' if count else ''}{count} ({stage.seconds:.0f} s)"


def _process_state(name: str, pid: int, states: dict[int, str], is_silent: bool) -> str:
    if not is_alive(pid):
        return "dead"
    if is_silent and pid not in states:
        return "silent"
    # Of servers that they run is all there is to know.
    return "running" if name in SERVERS else states.get(pid, "starting")
