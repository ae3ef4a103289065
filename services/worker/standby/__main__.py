"""``python -m services.worker.standby [DTYPE]``: imports what a worker needs, with the kernels of a
CPU for models of this dtype, waits for the settings of one, and becomes it.

The supervisor begins with such a process and keeps one, because most of the time in which a worker
starts is spent on imports. An order is JSON on standard input, from `cli.supervisor.standby`:
``environment``, and ``log_path`` for its output. Without one it ends.
"""

import json
import os
import runpy
import sys
from importlib import import_module

from kernels.compiled import compile_all
from services.worker.device.openmp import share_cores
from services.worker.load import importing
from shared.private import PRIVATE_UMASK

WORKER = "services.worker"


def import_all() -> None:
    """Import what a worker with a model of transformers imports."""
    with importing():
        import services.worker.device.cpu.torch_executor
        import services.worker.device.model
        import services.worker.service  # noqa: F401

        import_module("sympy")  # as torch does, when a model is laid out without its weights


def become_worker(order: bytes) -> None:
    """Take over the settings and the log of a worker, and run as it."""
    wanted = json.loads(order)
    _reopen(os.devnull, os.O_RDONLY, 0)
    try:
        _reopen(wanted["log_path"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 1, 2)
    except OSError:  # the disk does not take it
        _reopen(os.devnull, os.O_WRONLY, 1, 2)
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.umask(PRIVATE_UMASK)  # it may be older than its supervisor's
    runpy.run_module(WORKER, run_name="__main__", alter_sys=True)


def _reopen(path: str, flags: int, *numbers: int) -> None:
    """Put a file in the place of those with these numbers."""
    file = os.open(path, flags, 0o600)
    for number in numbers:
        os.dup2(file, number)
    os.close(file)


if __name__ == "__main__":
    share_cores()
    import_all()
    for dtype in sys.argv[1:]:
        compile_all(dtype)
    if order := sys.stdin.buffer.read():
        become_worker(order)
