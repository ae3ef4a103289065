"""Pages of host memory copied and hashed, by the fastest way that is installed: with numba one call
is one pass that holds no lock of Python's."""

from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

COMPILED_MIN_BYTES = 4096  # of a page: who has only shorter ones need not load what is compiled

Bytes = npt.NDArray[np.uint8]
PageNumbers: TypeAlias = Sequence[int] | npt.NDArray[np.int64]


def copy_pages(
    target: Bytes, target_pages: PageNumbers, source: Bytes, source_pages: PageNumbers
) -> None:
    """``target[target_pages] = source[source_pages]``.

    Args:
        target, source: uint8 ``[pages, page_bytes]``, contiguous.
    """
    if (cpu := _cpu(source)) is not None:
        cpu.copy(target, _numbers(target_pages), source, _numbers(source_pages))
        return
    for to, of in zip(target_pages, source_pages, strict=True):
        target[to] = source[of]


def copy_pages_summed(
    target: Bytes, target_pages: PageNumbers, source: Bytes, source_pages: PageNumbers
) -> list[int]:
    """`copy_pages`; returns xxh3-64 of each page."""
    if (cpu := _cpu(source)) is not None:
        of, to = _numbers(source_pages), _numbers(target_pages)
        found: list[int] = cpu.copy_summed(target, to, source, of).tolist()
        return found
    copy_pages(target, target_pages, source, source_pages)
    return page_sums(source, source_pages)


def page_sums(pages: Bytes, at: PageNumbers) -> list[int]:
    """xxh3-64 of each of these pages, uint8 ``[pages, page_bytes]``, contiguous."""
    if (cpu := _cpu(pages)) is not None:
        found: list[int] = cpu.sums(pages, _numbers(at)).tolist()
        return found
    return [xxhash.xxh3_64_intdigest(pages[page].data) for page in at]


def warm_up(pages: Bytes) -> None:
    """Compile what takes pages like these, so that no copy waits for it."""
    if _cpu(pages) is not None:
        some = np.zeros((1, COMPILED_MIN_BYTES), np.uint8)
        copy_pages(some, [0], some, [0])
        copy_pages_summed(some, [0], some, [0])


def _cpu(pages: Bytes) -> ModuleType | None:
    """The compiled kernels, if they are worth it for such pages."""
    return _loaded() if pages.shape[1] >= COMPILED_MIN_BYTES else None


@cache
def _loaded() -> ModuleType | None:
    try:
        from kernels.page_sums import cpu
    except ImportError:  # numba is optional
        return None
    return cpu


def _numbers(pages: PageNumbers) -> npt.NDArray[np.int64]:
    return np.asarray(pages, np.int64)
