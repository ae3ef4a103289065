"""``python -m kernels.compiled`` compiles a CPU's kernels before a worker needs them.

On a machine that runs a checkout for the first time this takes longer than all else that a worker
does until it is ready. It begins with what a worker compiles last, so that two cores share the
work: each finds compiled what the other one has done. What was compiled is only loaded.
"""

import os
from pathlib import Path

KERNELS = Path(__file__).parent.parent
FOLDERS = ("sgmv", "page_sums", "paged_attention", "pointwise")


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


def compile_all(dtype: str = "bfloat16") -> None:
    """Compile every kernel that a model of this dtype needs, or load what was compiled."""
    import numpy as np
    import torch

    from kernels import paged_attention, pointwise, sgmv
    from kernels.page_sums.select import COMPILED_MIN_BYTES
    from kernels.page_sums.select import warm_up as warm_up_sums

    chosen = getattr(torch, dtype)
    sgmv.warm_up(chosen)
    warm_up_sums(np.zeros((1, COMPILED_MIN_BYTES), np.uint8))
    paged_attention.warm_up(torch.zeros((1, 2, 1, 1, 64), dtype=chosen))
    pointwise.warm_up(torch.zeros(1, dtype=chosen))
