"""Helpers of workers (`services.worker.device.assist`), seen from outside: who they are, and when a
pass has them at work.
"""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from loadtest.deployment import Deployment
from services.worker.device.assist.channel import Channel, ChannelShape

MODULE = b"services.worker.device.assist.helper"
READY = '"a helper of adapters is ready"'
PASS_WITHIN_S = 60.0
LOOK_S = 0.0002


@dataclass(frozen=True, slots=True)
class Helper:
    """A process that computes what adapters add.

    Attributes:
        parent: its worker's pid.
        file_number: of its channel's file, in the process itself.
    """

    pid: int
    parent: int
    file_number: int
    shape: ChannelShape

    def channel(self) -> Channel:
        """The memory that it shares with its worker; only to look at.

        Raises:
            OSError: it is gone.
        """
        number = os.open(f"/proc/{self.pid}/fd/{self.file_number}", os.O_RDWR | os.O_CLOEXEC)
        try:
            return Channel.attach(number, self.shape)
        finally:
            os.close(number)


def helpers_of(worker_pid: int) -> list[Helper]:
    """Those of one worker; the oldest first."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile
            continue
        if MODULE in words:
            after = words.index(MODULE) + 1
            parent, file_number, *shape = (int(word) for word in words[after:] if word)
            if parent == worker_pid:
                found.append(Helper(int(folder.name), parent, file_number, ChannelShape(*shape)))
    return sorted(found, key=lambda helper: helper.pid)


def helper_names(deployment: Deployment) -> list[str]:
    """``helper-0``, which is the oldest of worker 0, and so on, of workers that have one."""
    return [
        name.replace("worker", "helper")
        for name, pid in deployment.pids().items()
        if name.startswith("worker-") and helpers_of(pid)
    ]


def are_all_ready(deployment: Deployment) -> bool:
    """Whether every worker has a helper, and no helper is still starting."""
    for name, pid in deployment.pids().items():
        if name.startswith("worker-"):
            log = (deployment.data_dir / "logs" / f"{name}.log").read_text(errors="replace")
            ready = [line for line in log.splitlines() if READY in line]
            helpers = helpers_of(pid)
            is_ready = [any(f'"pid":{each.pid},' in line for line in ready) for each in helpers]
            if not (is_ready and all(is_ready)):
                return False
    return True


class Aim(StrEnum):
    """What a fault met that was to meet a pass with helpers."""

    IN_PASS = "in a pass"
    BEHIND = "behind its last product"
    NO_PASS = "no pass came"


def strike_in_pass(
    target: int, number: signal.Signals, helper: int, channel: Channel
) -> tuple[float, bool]:
    """Send a signal to a helper, or to its worker, while a pass waits for the helper; in the end in
    any case. Blocking.

    The helper is stopped before, so that it leaves undone what it is asked for next: else none
    would be fast enough.

    Args:
        target, helper: pidfds; the same if it is for the helper.

    Returns:
        when, in monotonic seconds; whether there was such a pass.

    Raises:
        OSError: a process is gone.
    """
    give_up_at = time.monotonic() + PASS_WITHIN_S
    signal.pidfd_send_signal(helper, signal.SIGSTOP)
    while not (has_come := is_asked(channel)) and time.monotonic() < give_up_at:
        time.sleep(LOOK_S)
    at = time.monotonic()
    if target != helper:
        signal.pidfd_send_signal(target, number)
        number = signal.SIGCONT
    with suppress(ProcessLookupError):  # it was given up just now
        signal.pidfd_send_signal(helper, number)
    return at, has_come


def is_asked(channel: Channel) -> bool:
    """Whether a helper has not yet done what it was asked for."""
    return channel.asked > 0 and channel.outcome(channel.asked) is None


def was_in_pass(channel: Channel, *, is_helper: bool) -> bool:
    """Whether a process met its signal in a pass; to be asked some time after that.

    A helper left an order without an answer. A worker never said that the pass was over.
    """
    return is_asked(channel) if is_helper else channel.is_awake
