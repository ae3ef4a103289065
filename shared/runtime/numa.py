"""NUMA nodes, as Linux describes them in sysfs: which CPUs are near a device, and running there.

Memory is taken from the node of the CPU that first touches it, so what runs near a device also has
its memory there. Where there is one node, or nothing is known, nothing is changed.
"""

import os
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

SYSFS = Path("/sys")
THREADS = Path("/proc/self/task")
CPUS_MIN = 4  # on fewer a process would rather run on all that it may


def cpus_of_nodes(sysfs: Path = SYSFS) -> list[frozenset[int]]:
    """The CPUs of each node that has any, by the number of the node."""
    folders = sorted(
        (int(path.name.removeprefix("node")), path)
        for path in (sysfs / "devices/system/node").glob("node[0-9]*")
        if path.name.removeprefix("node").isdecimal()
    )
    return [cpus for _, path in folders if (cpus := _cpus_in(path / "cpulist"))]


def cpus_near(bus_id: str, sysfs: Path = SYSFS) -> frozenset[int]:
    """The CPUs of a PCI device's node; none where that is not known.

    Args:
        bus_id: such as ``0000:3b:00.0``; longer domains and capitals are read as well.
    """
    domain, _, rest = bus_id.strip().lower().partition(":")
    device = sysfs / "bus/pci/devices" / f"{domain[-4:]:0>4}:{rest}"
    try:
        node = int((device / "numa_node").read_text())
    except (OSError, ValueError):
        return frozenset()
    return _cpus_in(sysfs / f"devices/system/node/node{node}/cpulist")


def parse_cpus(text: str) -> frozenset[int]:
    """A list of CPUs as the kernel writes it.

    Raises:
        ValueError: it is something else.

    >>> sorted(parse_cpus("0-2,8\\n"))
    [0, 1, 2, 8]
    """
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def bind_process(cpus: AbstractSet[int]) -> frozenset[int]:
    """Run this process's threads, and those they start, on these of the CPUs that it may run on.
    Returns which; none: they are too few, or all that it has, and nothing was changed.
    """
    allowed = os.sched_getaffinity(0)
    wanted = frozenset(cpus & allowed)
    if len(wanted) < CPUS_MIN or wanted == allowed:
        return frozenset()
    for thread in os.listdir(THREADS):
        with suppress(OSError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread), wanted)
    return wanted


def bind_thread(cpus: AbstractSet[int]) -> None:
    """Run the calling thread on these of the CPUs that it may run on, if there are any."""
    if wanted := cpus & os.sched_getaffinity(0):
        with suppress(OSError):
            os.sched_setaffinity(0, wanted)


def _cpus_in(path: Path) -> frozenset[int]:
    try:
        return parse_cpus(path.read_text())
    except (OSError, ValueError):
        return frozenset()
