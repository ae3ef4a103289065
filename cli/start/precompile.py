"""``python -m cli.start.precompile``: compiles a CPU's kernels for bf16 before a worker needs them.

On a machine that runs a checkout for the first time this takes longer than all else that a worker
does until it is ready. It begins with what a worker compiles last, so that two cores share the
work: each finds compiled what the other one has done.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.base.children import ROOT, python_path, start_child, stop_child

KERNELS = ROOT / "kernels"
FOLDERS = ("sgmv", "page_sums", "paged_attention", "pointwise")


@contextmanager
def precompiling() -> Iterator[None]:
    """Compile in a process of its own beside what is done meanwhile, where that is still to do.
    What it does not come to, a worker does, and logs.
    """
    if is_compiled():
        yield
        return
    environment = {**os.environ, "PYTHONPATH": python_path(os.environ)}
    command = [sys.executable, "-P", "-m", "cli.start.precompile"]
    process = start_child(command, log_path=Path(os.devnull), env=environment)
    try:
        yield
    finally:
        stop_child(process)


def is_compiled(kernels: Path = KERNELS) -> bool:
    """Whether numba has kept something of each source since it was last changed, or keeps it
    elsewhere. Imports nothing, since it is asked at each start.
    """
    if os.environ.get("NUMBA_CACHE_DIR") or not os.access(kernels / FOLDERS[0], os.W_OK):
        return True
    return all(
        any(
            kept.stat().st_mtime >= source.stat().st_mtime
            for kept in (source.parent / "__pycache__").glob(f"{source.stem}.*.nbi")
        )
        for folder in FOLDERS
        for source in (kernels / folder).glob("*.py")
        if "cache=True" in source.read_text()
    )


def compile_all() -> None:
    """Compile every kernel that a model in bf16 needs."""
    import numpy as np
    import torch

    from kernels import paged_attention, pointwise, sgmv
    from kernels.page_sums.select import COMPILED_MIN_BYTES
    from kernels.page_sums.select import warm_up as warm_up_sums

    sgmv.warm_up(torch.bfloat16)
    warm_up_sums(np.zeros((1, COMPILED_MIN_BYTES), np.uint8))
    paged_attention.warm_up(torch.zeros((1, 2, 1, 1, 64), dtype=torch.bfloat16))
    pointwise.warm_up(torch.zeros(1, dtype=torch.bfloat16))


if __name__ == "__main__":
    compile_all()
