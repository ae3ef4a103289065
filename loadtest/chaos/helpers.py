"""Helpers of workers (`services.worker.device.assist`), seen from outside: who they are, and when a
pass has them at work.
"""

import os
import signal
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from loadtest.fuzz.house import House
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
            parent, file_number, *shape = (int(word) for word in words[after : after + 5])
            if parent == worker_pid:
                found.append(Helper(int(folder.name), parent, file_number, ChannelShape(*shape)))
    return sorted(found, key=lambda helper: helper.pid)


def helper_names(house: House) -> list[str]:
    """``helper-0``, which is the oldest of worker 0, and so on, of workers that have one."""
    return [
        name.replace("worker", "helper")
        for name, pid in house.pids().items()
        if name.startswith("worker-") and helpers_of(pid)
    ]


def are_all_ready(house: House) -> bool:
    """Whether every worker has a helper, and no helper is still starting."""
    for name, pid in house.pids().items():
        if name.startswith("worker-"):
            log = (house.directory / "logs" / f"{name}.log").read_text(errors="replace")
            ready = [line for line in log.splitlines() if READY in line]
            helpers = helpers_of(pid)
            told = [any(f'"pid":{each.pid},' in line for line in ready) for each in helpers]
            if not (told and all(told)):
                return False
    return True


class Aim(StrEnum):
    """What a fault met that was to meet a pass with helpers."""

    IN_PASS = "in a pass"
    PERHAPS = "perhaps behind it"
    NO_PASS = "no pass came"


def strike_in_pass(handle: int, number: signal.Signals, channel: Channel) -> tuple[float, Aim]:
    """Send a signal to a helper, or to its worker, when a pass has the helper at work; in the end
    in any case. Blocking.

    Args:
        handle: pidfd of the process.

    Returns:
        when, in monotonic seconds; what it met.

    Raises:
        OSError: the process is gone.
    """
    give_up_at = time.monotonic() + PASS_WITHIN_S
    while not (is_met := channel.is_awake) and time.monotonic() < give_up_at:
        time.sleep(LOOK_S)
    at = time.monotonic()
    signal.pidfd_send_signal(handle, number)
    if not is_met:
        return at, Aim.NO_PASS
    return at, Aim.IN_PASS if channel.is_awake else Aim.PERHAPS
