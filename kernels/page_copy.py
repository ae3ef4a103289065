"""Copies of scattered pages between two memories that a GPU can address, all in one launch.

Pages of one layer lie anywhere in the pool and anywhere in the arena, so there is no one large copy
to make, and a call a page costs more than the bytes do: a page of 128 KiB is over a link of 50 GB/s
in 2.6 us. A few programs on the GPU read registered host memory as fast as the link gives it.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # without it, pages are copied one by one
    triton = None

PROGRAMS = 32  # 32 x 16 KiB under way are ten times what a link of 50 GB/s holds in 1 us
# Writes need no answer, so that fewer keep the link busy; the others' cores are left to steps.
WRITING_PROGRAMS = 16
CHUNK_WORDS = 2048

PageNumbers: TypeAlias = Sequence[int] | npt.NDArray[np.int64]


def on_device(device: torch.device, *pages: PageNumbers) -> torch.Tensor:
    """Page numbers as kernels take them: int32 ``[lists, n]``, behind what the current stream
    does."""
    numbers = torch.from_numpy(np.array(pages, np.int32))
    return numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers


def copy_pages(
    target: torch.Tensor, target_pages: PageNumbers, source: torch.Tensor, source_pages: PageNumbers
) -> None:
    """``target[target_pages] = source[source_pages]``, behind what the current stream does.

    Args:
        target, source: uint8 ``[pages, page_bytes]``, contiguous, `page_bytes` a multiple of 8;
            one of them on the GPU, the other there too or in host memory registered with CUDA.
    """
    device = target.device if target.is_cuda else source.device
    copy_numbered(target, source, on_device(device, target_pages, source_pages))


def copy_numbered(target: torch.Tensor, source: torch.Tensor, numbers: torch.Tensor) -> None:
    """`copy_pages` of page numbers that are on the device: int32 ``[2, n]``, targets first."""
    assert target.shape[1] == source.shape[1], "pages of two sizes"
    if triton is None:
        for to, at in zip(*numbers.tolist(), strict=True):
            target[to].copy_(source[at], non_blocking=True)
        return
    num_pages, num_words = numbers.shape[1], target.shape[1] // 8
    num_chunks = num_pages * triton.cdiv(num_words, CHUNK_WORDS)
    programs = PROGRAMS if target.is_cuda else WRITING_PROGRAMS
    _copy_kernel[(min(programs, num_chunks),)](
        target.view(torch.int64), source.view(torch.int64), numbers[0], numbers[1],
        num_pages, num_words, CHUNK_WORDS, num_warps=8, enable_fp_fusion=True,
    )  # fmt: skip


if triton is not None:

    @triton.jit(do_not_specialize=["num_pages"])  # type: ignore[untyped-decorator]
    def _copy_kernel(  # type: ignore[no-untyped-def]
        target, source, target_pages, source_pages, num_pages, num_words, chunk: tl.constexpr
    ):
        chunks_in_page = tl.cdiv(num_words, chunk)
        for at in range(tl.program_id(0), num_pages * chunks_in_page, tl.num_programs(0)):
            page = at // chunks_in_page
            words = (at % chunks_in_page) * chunk + tl.arange(0, chunk)
            is_in_page = words < num_words
            to = tl.load(target_pages + page).to(tl.int64) * num_words
            of = tl.load(source_pages + page).to(tl.int64) * num_words
            tl.store(target + to + words, tl.load(source + of + words, is_in_page), is_in_page)
