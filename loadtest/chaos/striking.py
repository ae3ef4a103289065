"""A fault done to a process: when an adapter is on its way to a worker, where some are loaded; and
where helpers assist, in the middle of a pass that they assist.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from loadtest.chaos.helpers import Aim, helpers_of, strike_in_pass, was_in_pass
from loadtest.chaos.judge import Fault
from loadtest.chaos.scene import Stage
from loadtest.fuzz.report import Report

LOADING_WITHIN_S = 10.0
LOOK_S = 0.02
ORDERS_S = 0.1  # until what was under way is over


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
    """Ask a process to end, kill it, or stop it for some time."""
    kind, _, number = fault.name.partition("-")
    worker = int(number) if kind in ("worker", "helper") else None
    pids = stage.deployment.pids()
    sent = signal.SIGTERM if fault.is_orderly else signal.SIGKILL
    sent = signal.SIGSTOP if fault.stop_s else sent
    if worker is not None and stage.has_helpers:
        helper = helpers_of(pids[f"worker-{worker}"])[0]
        channel = helper.channel()
        with _opened(helper.pid) as beside, _opened(pids.get(fault.name, helper.pid)) as target:
            to = beside if kind == "helper" else target
            at, has_come = await asyncio.to_thread(strike_in_pass, to, sent, beside, channel)
            with _stopped(to, fault.stop_s):
                await asyncio.sleep(fault.stop_s or ORDERS_S)
                is_met = was_in_pass(channel, is_helper=kind == "helper")
        return Met(at, 0, (Aim.IN_PASS if is_met else Aim.BEHIND) if has_come else Aim.NO_PASS)
    if kind in ("worker", "kvstore"):
        await _await_loading(stage, worker)
    num_awaited = stage.watch.num_awaited(worker)
    with _opened(pids[fault.name]) as target:
        at = time.monotonic()
        signal.pidfd_send_signal(target, sent)
        with _stopped(target, fault.stop_s):
            await asyncio.sleep(fault.stop_s)
    return Met(at, num_awaited, None)


@contextmanager
def _opened(pid: int) -> Iterator[int]:
    """A handle of a process: its number may be another's when it is gone."""
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _stopped(target: int, stop_s: float) -> Iterator[None]:
    """If it was stopped, it goes on in the end."""
    try:
        yield
    finally:
        if stop_s:
            with suppress(ProcessLookupError):  # a helper that stands still is replaced
                signal.pidfd_send_signal(target, signal.SIGCONT)


async def _await_loading(stage: Stage, worker: int | None) -> None:
    """Until turns wait for an adapter, if they do within some time."""
    give_up_at = time.monotonic() + LOADING_WITHIN_S
    while stage.watch.is_open and time.monotonic() < give_up_at:
        if stage.watch.num_awaited(worker):
            return
        await asyncio.sleep(LOOK_S)
