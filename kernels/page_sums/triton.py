"""Checksums of pages in a device's memory, where they are read a hundred times as fast as a link
carries them: so that who stores pages need not read them again on the host.

`_mix_kernel` computes what each block of each page adds to the accumulators; `_chain_kernel` goes
from block to block, eight lanes a page, many pages side by side. Words are int64: products and sums
wrap as unsigned ones do, and what a shift to the right brings in is masked.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from kernels.page_sums import xxh3

BLOCKS_AT_ONCE = 8  # 8 KiB a program
PAGES_AT_ONCE = 4  # with eight lanes each, a warp


def page_sums(pages: torch.Tensor, numbers: torch.Tensor, sums: torch.Tensor) -> None:
    """xxh3-64 of these pages, behind what the current stream does.

    Args:
        pages: uint8 ``[pages, page_bytes]``, contiguous; `page_bytes` a multiple of 8 and at least
            `xxh3.LENGTH_MIN`.
        numbers: int32 ``[n]``, on the same device.
        sums: int64 ``[n]``, there too or in pinned memory; filled, as the bits of unsigned words.
    """
    num_pages, num_bytes = len(numbers), pages.shape[1]
    assert num_bytes >= xxh3.LENGTH_MIN and num_bytes % 8 == 0, "pages of another size"
    num_blocks = (num_bytes - 1) // xxh3.BLOCK_BYTES + 1
    parts = torch.empty((num_pages, num_blocks, 8), dtype=torch.int64, device=pages.device)
    words, table = pages.view(torch.int64), _table(pages.device)
    _mix_kernel[(num_pages, triton.cdiv(num_blocks, BLOCKS_AT_ONCE))](
        words, numbers, table, parts, words.shape[1], num_blocks, BLOCKS_AT_ONCE, num_warps=4,
        enable_fp_fusion=True,
    )  # fmt: skip
    start = np.array(num_bytes, np.uint64) * np.uint64(xxh3.PRIME64_1)
    _chain_kernel[(triton.cdiv(num_pages, PAGES_AT_ONCE),)](
        words, numbers, table, parts, sums, num_pages, words.shape[1], num_blocks,
        int(start.astype(np.int64)), PAGES_AT_ONCE, num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip


@cache
def _table(device: torch.device) -> torch.Tensor:
    """Secret (24 words), the last stripe's part of it, the last steps' part, first accumulators."""
    parts: Any = (
        xxh3.secret_words(0, 24), xxh3.secret_words(xxh3.LAST_AT, 8),
        xxh3.secret_words(xxh3.MERGE_AT, 8), xxh3.first_accumulators(),
    )  # fmt: skip
    return torch.from_numpy(np.concatenate(parts).view(np.int64)).to(device)


@triton.jit
def _add_to_lanes(words, at, key, is_there):  # type: ignore[no-untyped-def]
    """What stripes of eight words add to the accumulators of their lanes."""
    data = tl.load(words + at, is_there, other=0)
    of_neighbour = tl.load(words + (at ^ 1), is_there, other=0)
    mixed = data ^ key
    product = (mixed & 0xFFFFFFFF) * ((mixed >> 32) & 0xFFFFFFFF)
    return tl.where(is_there, product + of_neighbour, 0)


@triton.jit
def _mix_kernel(  # type: ignore[no-untyped-def]
    words, numbers, table, parts, num_words, num_blocks, blocks_at_once: tl.constexpr
):
    page = tl.program_id(0)
    first = tl.load(numbers + page).to(tl.int64) * num_words
    blocks = tl.program_id(1) * blocks_at_once + tl.arange(0, blocks_at_once)
    stripes = tl.arange(0, 16)
    lanes = tl.arange(0, 8)
    stripe = blocks[:, None] * 16 + stripes[None, :]
    is_there = (stripe < (num_words - 1) // 8)[:, :, None] & (lanes >= 0)[None, None, :]
    key = tl.load(table + stripes[:, None] + lanes[None, :])[None, :, :]
    at = stripe[:, :, None] * 8 + lanes[None, None, :]
    added = tl.sum(_add_to_lanes(words + first, at, key, is_there), axis=1)
    to = (page * num_blocks + blocks)[:, None] * 8 + lanes[None, :]
    tl.store(parts + to, added, (blocks < num_blocks)[:, None])


@triton.jit(do_not_specialize=["num_pages"])
def _chain_kernel(  # type: ignore[no-untyped-def]
    words, numbers, table, parts, sums, num_pages, num_words, num_blocks,
    start: tl.constexpr, pages_at_once: tl.constexpr,
):  # fmt: skip
    pages = tl.program_id(0) * pages_at_once + tl.arange(0, pages_at_once)
    is_page = pages < num_pages
    is_there = is_page[:, None]
    lanes = tl.arange(0, 8)
    value = tl.zeros((pages_at_once, 8), tl.int64) + tl.load(table + 40 + lanes)[None, :]
    scramble = tl.load(table + 16 + lanes)[None, :]
    at = pages[:, None] * num_blocks * 8 + lanes[None, :]
    for _ in range(num_blocks - 1):
        value += tl.load(parts + at, is_there, other=0)
        value ^= (value >> 47) & 0x1FFFF
        value = (value ^ scramble) * 0x9E3779B1
        at += 8
    value += tl.load(parts + at, is_there, other=0)
    first = tl.load(numbers + pages, is_page, other=0).to(tl.int64) * num_words
    key = tl.load(table + 24 + lanes)[None, :]
    last = words + (first + num_words - 8)[:, None]
    value += _add_to_lanes(last, lanes[None, :], key, is_there)
    value ^= tl.load(table + 32 + lanes)[None, :]
    low, high = tl.split(value.reshape(pages_at_once, 4, 2))
    above = tl.umulhi(low.to(tl.uint64, bitcast=True), high.to(tl.uint64, bitcast=True))
    total = start + tl.sum((low * high) ^ above.to(tl.int64, bitcast=True), axis=1)
    total ^= (total >> 37) & 0x7FFFFFF
    total *= 0x165667919E3779F9
    total ^= (total >> 32) & 0xFFFFFFFF
    tl.store(sums + pages, total, is_page)
