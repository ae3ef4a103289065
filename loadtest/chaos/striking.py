"""A fault done to a process: when an adapter is on its way to a worker, where some are loaded; and
where helpers assist, in the middle of a pass that they assist.
"""

import asyncio
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from loadtest.chaos.helpers import Aim, helpers_of, strike_in_pass
from loadtest.chaos.judge import Fault
from loadtest.chaos.scene import Stage
from loadtest.fuzz.report import Report
from services.worker.device.assist.channel import Channel

LOADING_WITHIN_S = 10.0
LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Met:
    """What a fault met.

    Attributes:
        at: when it was done, or began; monotonic seconds.
        num_awaited: adapters that turns of the worker, or else of all workers, waited for shortly
            before.
        aim: None: no pass was aimed at.
    """

    at: float
    num_awaited: int
    aim: Aim | None

    def judge(self, report: Report, fault: Fault) -> None:
        """Count, and say if it shows nothing."""
        report.count("faults while adapters were awaited", bool(self.num_awaited))
        report.count("faults in an assisted pass", self.aim is Aim.IN_PASS)
        is_shown = self.aim is not Aim.NO_PASS or fault.name.startswith("worker")
        report.expect(is_shown, f"{fault.what}: no pass was assisted: nothing is shown")

    def as_dict(self) -> dict[str, Any]:
        """What machines read."""
        return {"adapters_awaited": self.num_awaited, "aim": self.aim}


async def strike(stage: Stage, fault: Fault) -> Met:
    """Kill a process, or stop it for some time."""
    kind, _, number = fault.name.partition("-")
    worker = int(number) if kind in ("worker", "helper") else None
    pid, channel = _target(stage, fault.name, worker)
    if channel is None and kind in ("worker", "kvstore"):
        await _await_loading(stage, worker)
    num_awaited = stage.watch.num_awaited(worker)
    sent = signal.SIGSTOP if fault.stop_s else signal.SIGKILL
    handle = os.pidfd_open(pid)
    try:
        at, aim = time.monotonic(), None
        if channel is None:
            signal.pidfd_send_signal(handle, sent)
        else:
            at, aim = await asyncio.to_thread(strike_in_pass, handle, sent, channel)
        await asyncio.sleep(fault.stop_s)
    finally:
        if fault.stop_s:
            with suppress(ProcessLookupError):  # a helper that stands still is replaced
                signal.pidfd_send_signal(handle, signal.SIGCONT)
        os.close(handle)
    return Met(at, num_awaited, aim)


def _target(stage: Stage, name: str, worker: int | None) -> tuple[int, Channel | None]:
    """Whom to strike, and by what to see when."""
    pids = stage.house.pids()
    if worker is None or not stage.has_helpers:
        return pids[name], None
    helper = helpers_of(pids[f"worker-{worker}"])[0]
    return pids.get(name, helper.pid), helper.channel()


async def _await_loading(stage: Stage, worker: int | None) -> None:
    """Until turns wait for an adapter, if they do within some time."""
    give_up_at = time.monotonic() + LOADING_WITHIN_S
    while stage.watch.is_open and time.monotonic() < give_up_at:
        if stage.watch.num_awaited(worker):
            return
        await asyncio.sleep(LOOK_S)
