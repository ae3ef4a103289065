"""Kernels of a CPU, compiled beside the first start."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.base.children import python_path, start_child, stop_child
from kernels.compiled import is_compiled


@contextmanager
def precompiling() -> Iterator[None]:
    """Compile in a process of its own beside what is done meanwhile, where that is still to do.
    What it does not come to, a worker does, and logs.
    """
    if is_compiled():
        yield
        return
    environment = {**os.environ, "PYTHONPATH": python_path(os.environ)}
    command = [sys.executable, "-P", "-m", "kernels.compiled"]
    process = start_child(command, log_path=Path(os.devnull), env=environment)
    try:
        yield
    finally:
        stop_child(process)
