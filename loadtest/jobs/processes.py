"""Processor time and memory of other processes."""

import os
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Memory:
    """Attributes:
    resident_mb: all that is in memory, with mapped files and what is shared.
    own_mb: of that, what no file and no shared memory holds: where leaks are.
    """

    resident_mb: float
    own_mb: float


def cpu_s(pid: int) -> float:
    """Processor seconds that a process and its threads have used so far.

    Raises:
        OSError: there is no such process.
    """
    # The name, in brackets, may hold anything: fields are counted from its end.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def memory_of(pid: int) -> Memory:
    """What a process has in memory now.

    Raises:
        OSError: there is no such process.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    resident, own = (int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "RssAnon"))
    return Memory(resident, own)
