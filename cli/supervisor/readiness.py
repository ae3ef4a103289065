"""Whether a deployment that starts can serve, and what each of its processes does until then."""

import time
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError

from cli.base.board import READY, STARTING, Step
from cli.base.runfile import RunState
from cli.inspection.snapshot import Snapshot, look
from shared.runtime.access import trusting_only
from shared.runtime.stages import count_text, stage_text

LOOK_S = 1.0  # between two questions to all processes, as long as the frontend refuses


class Readiness:
    """Asks the frontend often, all processes now and then.

    Args:
        servers, services: names.

    Attributes:
        steps: what each of them did when it was last heard of.
    """

    def __init__(self, servers: Sequence[str], services: Sequence[str]) -> None:
        self._services = services
        self._by_name = {name: Step(name) for name in (*servers, *services)}
        self._look_at = 0.0

    @property
    def steps(self) -> list[Step]:
        return list(self._by_name.values())

    def on_listening(self, name: str) -> None:
        """A server is up."""
        self._by_name[name] = Step(name, READY)

    def look(self, run: RunState) -> Snapshot | None:
        """What is seen once everything can be served; None before."""
        path = "health" if run.num_workers else "ping"
        serves = _answers(f"{run.url}/{path}", run.http_cert_file)
        if not serves and time.monotonic() < self._look_at:
            return None
        snapshot = look(run)
        self._look_at = time.monotonic() + LOOK_S
        if snapshot is None:
            return None
        pids = {child.name: child.pid for child in run.services}
        for name in self._services:
            if (pid := pids.get(name)) is not None and pid in snapshot.states:
                step = step_of(name, pid, snapshot, run.num_workers)
                if step.doing != STARTING:  # else it is between two stages
                    self._by_name[name] = step
        is_whole = all(
            name in pids and snapshot.states.get(pids[name]) == "ready" for name in self._services
        )
        are_there = snapshot.num_ready_workers() >= run.num_workers
        return snapshot if serves and is_whole and are_there and not missing(snapshot) else None


def missing(snapshot: Snapshot) -> str:
    """Models that workers serve and no frontend does yet, as text."""
    return ", ".join(sorted(snapshot.models_missing()))


def step_of(name: str, pid: int, snapshot: Snapshot, num_workers: int) -> Step:
    """What a process that answers is doing.

    Args:
        num_workers: that are to be ready in all.
    """
    if (stage := snapshot.stages.get(pid)) is not None:
        return Step(name, stage_text(stage), count_text(stage))
    if snapshot.states[pid] != "ready":
        return Step(name, STARTING)
    if name.partition("-")[0] == "frontend":
        num_ready = snapshot.num_ready_workers()
        if num_ready < num_workers:
            count = f"{num_ready} of {num_workers} ready"
            return Step(name, "waiting for workers", count, is_waiting=True)
        if names := missing(snapshot):
            return Step(name, f"loading the tokenizer of {names}")
    return Step(name, READY)


def _answers(url: str, cert_file: Path | None) -> bool:
    context = None if cert_file is None else trusting_only(cert_file)
    try:
        with urllib.request.urlopen(url, timeout=1.0, context=context) as response:
            return bool(response.status == 200)
    except (URLError, OSError, HTTPException):  # what listens there may not speak HTTP
        return False
