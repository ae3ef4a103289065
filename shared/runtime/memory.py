"""How much memory this process can have: the host's, or what its control groups leave of that."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

_FILES = {  # of a group, by version: limit, use, statistics
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    2: ("memory.max", "memory.current"),
}
# Pages of files that the kernel drops for others; version 1 counts those of groups inside, too.
_CACHES = (("total_active_file", "active_file"), ("total_inactive_file", "inactive_file"))


@dataclass(frozen=True, slots=True)
class Memory:
    """Of the host and of every control group around this process, the least.

    Attributes:
        total_bytes: that there may be in use at once.
        available_bytes: that can be had now without swapping.
    """

    total_bytes: int
    available_bytes: int


def measure_memory(root: Path = Path("/")) -> Memory:
    """What there is now. Takes some 100 us.

    Args:
        root: under which `proc` and `sys` are; a test has its own.
    """
    meminfo = _numbers(root / "proc/meminfo")
    total = meminfo.get("MemTotal:", 0) * 1024
    available = meminfo.get("MemAvailable:", 0) * 1024
    for limit, used, cached in _limits(root):
        total = min(total, limit)
        available = min(available, limit - used + cached)
    return Memory(total, max(available, 0))


def _limits(root: Path) -> Iterator[tuple[int, int, int]]:
    """Of every group around this process that has a limit: limit, use, and how much of that is
    cached files.
    """
    for version, top, path in _groups(root):
        limit_name, used_name = _FILES[version]
        folder = top / path.lstrip("/")
        # In a container, `proc` may name a folder of the host, and its own is the one on top.
        # Version 1 says some 2**63 where there is no limit, version 2 `max`.
        for group in chain([folder], folder.parents):
            limit, used = _number(group / limit_name), _number(group / used_name)
            if limit is not None and used is not None:
                counts = _numbers(group / "memory.stat")
                yield limit, used, sum(_first(counts, names) for names in _CACHES)


def _groups(root: Path) -> Iterator[tuple[int, Path, str]]:
    """Version, mount point and path of this process's groups that may limit its memory."""
    lines = (line.split(":", 2) for line in _lines(root / "proc/self/cgroup"))
    for _, controllers, path in (fields for fields in lines if len(fields) == 3):
        if not controllers:
            yield 2, root / "sys/fs/cgroup", path
        elif "memory" in controllers.split(","):
            yield 1, root / "sys/fs/cgroup/memory", path


def _first(counts: dict[str, int], names: tuple[str, ...]) -> int:
    return next((counts[name] for name in names if name in counts), 0)


def _numbers(path: Path) -> dict[str, int]:
    """The first two words of each line: a name and a number."""
    found = (re.match(r"(\S+)\s+(\d+)", line) for line in _lines(path))
    return {match[1]: int(match[2]) for match in found if match}


def _number(path: Path) -> int | None:
    """What the file says; None: it is not there, or says ``max``."""
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdecimal() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("ascii", errors="replace").splitlines()
    except OSError:
        return []
