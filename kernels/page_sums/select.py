"""Pages of host memory copied and hashed, by the fastest way that is installed: with numba one call
is one pass that holds no lock of Python's."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from kernels.page_sums.xxh3 import LENGTH_MIN

try:
    from kernels.page_sums import cpu
except ImportError:  # numba is optional
    cpu = None  # type: ignore[assignment]

Bytes = npt.NDArray[np.uint8]


def copy_pages(
    target: Bytes, target_pages: Sequence[int], source: Bytes, source_pages: Sequence[int]
) -> None:
    """``target[target_pages] = source[source_pages]``.

    Args:
        target, source: uint8 ``[pages, page_bytes]``, contiguous.
    """
    if cpu is not None:
        cpu.copy(target, _numbers(target_pages), source, _numbers(source_pages))
        return
    for to, of in zip(target_pages, source_pages, strict=True):
        target[to] = source[of]


def copy_pages_summed(
    target: Bytes, target_pages: Sequence[int], source: Bytes, source_pages: Sequence[int]
) -> list[int]:
    """`copy_pages`; returns xxh3-64 of each page."""
    if cpu is not None and source.shape[1] >= LENGTH_MIN:
        of, to = _numbers(source_pages), _numbers(target_pages)
        found: list[int] = cpu.copy_summed(target, to, source, of).tolist()
        return found
    copy_pages(target, target_pages, source, source_pages)
    return page_sums(source, source_pages)


def page_sums(pages: Bytes, at: Sequence[int]) -> list[int]:
    """xxh3-64 of each of these pages, uint8 ``[pages, page_bytes]``, contiguous."""
    if cpu is not None and pages.shape[1] >= LENGTH_MIN:
        found: list[int] = cpu.sums(pages, _numbers(at)).tolist()
        return found
    return [xxhash.xxh3_64_intdigest(pages[page].data) for page in at]


def warm_up() -> None:
    """Compile, so that no copy waits for it."""
    pages = np.zeros((1, LENGTH_MIN), np.uint8)
    copy_pages(pages, [0], pages, [0])
    copy_pages_summed(pages, [0], pages, [0])


def _numbers(pages: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.asarray(pages, np.int64)
