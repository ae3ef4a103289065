"""The end of a process that cannot even stop in order, of one whose parent has ended, and of one
that takes too much memory.
"""

import ctypes
import faulthandler
import logging
import os
import resource
import signal
from typing import NoReturn

log = logging.getLogger(__name__)

EXIT_STUCK = 70
PR_SET_PDEATHSIG = 1


def die(why: str) -> NoReturn:
    """End at once, whatever threads are at: one that hangs would be waited for in vain. The kernel
    frees what the process held, and its supervisor starts another.
    """
    log.critical(why)
    logging.shutdown()
    os._exit(EXIT_STUCK)


def die_within(seconds: float) -> None:
    """End with status 1 so much later, whatever threads are at then, unless this process has ended
    before. Each thread's stack is written to standard error. Needs no thread of Python's.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, in the middle of work too: or rather
    the parent's thread that started it, which has to live as long.

    Args:
        parent: its process id, for it may have ended already.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def limit_memory(num_bytes: int) -> None:
    """Fail this process's allocations beyond so many bytes of addresses more than now."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = mapped_bytes() + num_bytes
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def mapped_bytes() -> int:
    """Addresses that this process has, in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
