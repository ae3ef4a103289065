"""How many threads compute on a CPU."""

import torch


def limit_threads(num_threads: int) -> None:
    """Of torch's operations, and of our kernels."""
    torch.set_num_threads(num_threads)
    try:
        from kernels.paged_attention.cpu import set_num_threads
    except ImportError:
        return  # without numba its threads need no limit
    set_num_threads(num_threads)
