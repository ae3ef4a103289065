"""How much memory is free."""

import re
from pathlib import Path

MEMINFO = Path("/proc/meminfo")


def free_bytes() -> int:
    """What the kernel says it can hand out without swapping; 0: it does not say."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", MEMINFO.read_text("ascii"), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0
