"""How fast this machine reads memory, as whatever reads weights is bound by it."""

import statistics
import time

import numpy as np
import torch
from numba import njit, prange

# The random numbers that fill the memory again and again: more would take seconds to draw.
NUM_DRAWN = 1 << 24
STREAM_BLOCK = 1 << 16


class Stream:
    """Reads one large memory with all threads.

    Args:
        dtype: of what fills it, random numbers of this `deviation`.
        size_bytes: several times the caches.
    """

    def __init__(self, dtype: torch.dtype, size_bytes: int, deviation: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(NUM_DRAWN, generator=generator).mul_(deviation).to(dtype)
        self.memory = drawn.repeat(-(-size_bytes // (NUM_DRAWN * dtype.itemsize)))
        self._words = self.memory.view(torch.int64).numpy()
        self._sums = np.zeros(len(self._words) // STREAM_BLOCK, np.int64)
        self._took_s: list[float] = []
        self.measure()  # compiles
        self._took_s.clear()

    def measure(self) -> None:
        """Read all of it once."""
        started = time.perf_counter()
        _read(self._words, self._sums)
        self._took_s.append(time.perf_counter() - started)

    def gb_per_s(self) -> float:
        """The median of what was measured."""
        return self.memory.nbytes / statistics.median(self._took_s) / 1e9


@njit(parallel=True, nogil=True)
def _read(words, sums):  # type: ignore[no-untyped-def]
    for block in prange(len(sums)):
        total = 0
        for i in range(block * STREAM_BLOCK, (block + 1) * STREAM_BLOCK):
            total += words[i]
        sums[block] = total
