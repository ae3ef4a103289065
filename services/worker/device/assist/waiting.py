"""Waiting for a word of another process without taking its core: in the kernel, until it rings.

Looking again and again would be faster where cores are idle. But helpers may share theirs with the
model's threads, and who offers a core with `sched_yield` may get it back milliseconds later.
"""

import ctypes
import errno
import os
import platform
import time
from collections.abc import Callable

SPIN_NS = 20_000  # most answers of a helper with a core of its own take longer
NAP_S = 20e-6
LOOK_NS = 5_000_000  # what comes without a ring is seen by then

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_WAIT, _WAKE = 0, 1
_ALL = 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_libc = ctypes.CDLL(None, use_errno=True)  # its calls let go of the interpreter


class Bell:
    """A number in shared memory that one side counts up, and whose changes the other one waits for.

    Args:
        address: of four bytes, aligned, that nothing else uses.
    """

    def __init__(self, address: int) -> None:
        self._address = address
        self._count = ctypes.c_uint32.from_address(address)

    def ring(self) -> None:
        """To be called behind what the other side is to find."""
        self._count.value += 1
        if _FUTEX is not None:
            _libc.syscall(_FUTEX, ctypes.c_void_p(self._address), _WAKE, _ALL, None)

    @property
    def count(self) -> int:
        """How often it rang, modulo 2**32."""
        return self._count.value

    def wait(self, count: int, timeout_ns: int) -> None:
        """Return at the first ring after the one that made it `count`, or when the time is over, or
        for no reason."""
        if _FUTEX is None:
            time.sleep(NAP_S)
            return
        timeout = _Timespec(timeout_ns // 1_000_000_000, timeout_ns % 1_000_000_000)
        failed = _libc.syscall(
            _FUTEX, ctypes.c_void_p(self._address), _WAIT, count, ctypes.byref(timeout)
        )
        if failed and (error := ctypes.get_errno()) not in _EXPECTED:
            raise OSError(error, os.strerror(error))


_EXPECTED = {errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT}


def wait_for(is_there: Callable[[], bool], until_ns: int, bell: Bell | None) -> bool:
    """Wait until it is there, or the time is over; whether it is.

    Other threads of this process run meanwhile.

    Args:
        until_ns: `time.monotonic_ns`.
        bell: that rings when it is; None: a device writes the words, which rings none, so that one
            has to look.
    """
    spins_until_ns = time.monotonic_ns() + SPIN_NS
    while True:
        count = 0 if bell is None else bell.count
        if is_there():
            return True
        now_ns = time.monotonic_ns()
        if now_ns >= until_ns:
            return False
        if now_ns < spins_until_ns:
            continue
        if bell is None:
            time.sleep(NAP_S)
        else:
            bell.wait(count, min(until_ns - now_ns, LOOK_NS))
