"""Processes of a deployment asked to end, killed or suspended under streams (`--end`, `--kill`,
`--stop`).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import uvloop

from loadtest.chaos.crowd import session_of
from loadtest.chaos.helpers import helper_names
from loadtest.chaos.judge import Fault, judge
from loadtest.chaos.scene import (
    SETTLE_S,
    Scene,
    Setting,
    Stage,
    in_words,
    open_scene,
    open_stage,
    say,
    wait_well,
)
from loadtest.chaos.striking import strike
from loadtest.fuzz.report import Report
from shared.errors import InvalidRequest, PeerUnavailable

ALL = "all"
LAST = "frontend"  # so that the others are seen from streams that nothing broke


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Attributes:
    end, kill, stop: names of processes, or `ALL`.
    stops_s: how long each stands still, one fault each.
    rounds: how often everything is done.
    """

    end: tuple[str, ...]
    kill: tuple[str, ...]
    stop: tuple[str, ...]
    stops_s: tuple[float, ...]
    rounds: int
    num_workers: int
    num_spares: int


def run(wanted: Wanted, setting: Setting) -> dict[str, Any]:
    """Do all that is wanted to one deployment.

    Raises:
        InvalidRequest: the deployment has no process of a name.
        PeerUnavailable: it did not come up, or serves badly before anything is done.
    """
    with open_stage(wanted.num_workers, wanted.num_spares, setting) as stage:
        return uvloop.run(_run(stage, wanted, setting))


def plan(wanted: Wanted, names: Sequence[str]) -> list[Fault]:
    """One round: orderly ends, kills, then stops, the shortest first. A scheduler's fault is
    followed by its spare's, which then leads, so that who leads is met.

    Raises:
        InvalidRequest: there is no process of a name; lists those that there are.
    """
    for name in (*wanted.end, *wanted.kill, *wanted.stop):
        if name != ALL and name not in names:
            raise InvalidRequest(f"no process {name!r} in the deployment: {', '.join(names)}")
    kinds = [
        (wanted.end, 0.0, True),
        (wanted.kill, 0.0, False),
        *((wanted.stop, stop_s, False) for stop_s in sorted(wanted.stops_s)),
    ]
    order = sorted(names, key=lambda name: name == LAST)
    return [
        Fault(name=name, stop_s=stop_s, is_orderly=is_orderly)
        for those, stop_s, is_orderly in kinds
        for name in order
        if name in those or ALL in those
    ]


async def _run(stage: Stage, wanted: Wanted, setting: Setting) -> dict[str, Any]:
    deployment, watch = stage.deployment, stage.watch
    if stage.has_helpers and not await wait_well(stage, {}):
        raise PeerUnavailable("the workers' helpers did not start")
    faults = plan(wanted, (*deployment.pids(), *helper_names(deployment))) * wanted.rounds
    report, tolls = Report(), []
    async with open_scene(stage, setting) as scene:
        for number, fault in enumerate(faults, start=1):
            before, counted = deployment.pids(), watch.counts
            met = await strike(stage, fault)
            begun_at = met.at
            gone = {fault.name: before[fault.name]} if fault.name in before else {}
            if not await wait_well(stage, {} if fault.stop_s else gone):
                report.expect(False, f"{fault.what}: the deployment did not get well again")
                break
            well_s = time.monotonic() - begun_at - SETTLE_S
            toll = await scene.crowd.toll_since(begun_at)
            judge(report, fault, toll, stage.load_s)
            _check_pids(report, fault, before, deployment.pids())
            if fault.breaks_streams:
                await _check_return(report, scene, fault, begun_at)
            say(f"{number}/{len(faults)} {fault.what}: {in_words(toll)}; well in {well_s:.1f} s")
            entry = {"fault": fault.what, "well_s": round(well_s, 1), **toll.as_dict()}
            if setting.adapters.num:
                met.judge(report, fault)
                entry |= {**met.as_dict(), **(watch.counts - counted).as_dict()}
            tolls.append(entry)
        undisturbed = scene.undisturbed.as_dict()
    found = {**report.as_dict(), "undisturbed": undisturbed, "faults": tolls}
    return found | ({"adapters": watch.counts.as_dict()} if setting.adapters.num else {})


def _check_pids(
    report: Report, fault: Fault, before: dict[str, int], after: dict[str, int]
) -> None:
    """Only what was killed ended. A scheduler that led ends itself when it stood still for
    longer than its lease.
    """
    changed = {name for name in before if after.get(name) != before[name]}
    may_end = not fault.stop_s or fault.name.startswith("scheduler")
    ended = ", ".join(sorted(changed - {fault.name} if may_end else changed))
    report.expect(not ended, f"{fault.what}: ended: {ended}")


async def _check_return(report: Report, scene: Scene, fault: Fault, begun_at: float) -> None:
    """Clients whose streams broke have come back with their sessions and found their KV. A frontend
    that is asked to end lets short streams finish.
    """
    broken, back = scene.crowd.broken_since(begun_at), scene.crowd.back_since(begun_at)
    missing = broken - {stream.client for stream in back}
    report.count("came back", len(back))
    report.count("came back to their KV", sum(stream.cached_tokens > 0 for stream in back))
    is_shown = bool(broken) or fault.is_orderly
    report.expect(is_shown, "the frontend was killed and no stream broke: nothing is shown")
    report.expect(not missing, f"{len(missing)} of {len(broken)} clients did not come back")
    without = sum(not stream.cached_tokens for stream in back)
    report.expect(not without, f"{without} clients came back and did not find their KV")
    async with httpx.AsyncClient(base_url=scene.stage.deployment.url) as http:
        for stream in back:
            answer = await http.get(f"/v1/sessions/{session_of(stream.client)}")
            report.expect(answer.status_code == 200, f"a session is gone: {answer.text}")
