"""A vLLM rank's KV cache as pages of bytes: one for each layer of each block.

What a page means is vLLM's alone (backends lay it out otherwise): bytes go to the arena and come
back, for caches of the same layout.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, cast

from shared.blocks import BLOCK_TOKENS
from shared.errors import ConfigError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class CachePages:
    """Attributes:
    layers: uint8 ``[num_blocks, page_bytes]`` of each, contiguous, in the cache's own memory.
    layout: dtype, shape and order of a page's numbers.
    token_rows: see `Registered`, as far as the order of the numbers shows.
    """

    layers: list["torch.Tensor"]
    layout: str
    token_rows: int

    @property
    def num_blocks(self) -> int:
        return int(self.layers[0].shape[0])

    @property
    def page_bytes(self) -> int:
        return int(self.layers[0].shape[1])


def cache_pages(caches: Mapping[str, "torch.Tensor"], num_blocks: int) -> CachePages:
    """The pages of what vLLM registers, by layer's name; layers that share memory count once.

    Raises:
        ConfigError: a block of a layer is no contiguous run of bytes, or layers differ.
    """
    distinct = {cache.data_ptr(): cache for cache in caches.values()}
    found = [_pages_of(cache, num_blocks) for cache in distinct.values()]
    if len({(pages.shape, layout, rows) for pages, layout, rows in found}) != 1:
        raise ConfigError("vLLM: the layers of this model have KV caches of several shapes")
    _, layout, rows = found[0]
    return CachePages([pages for pages, _, _ in found], layout, rows)


def _pages_of(cache: "torch.Tensor", num_blocks: int) -> tuple["torch.Tensor", str, int]:
    import torch

    shape, strides = tuple(cache.shape), cache.stride()
    if shape[0] != num_blocks:
        raise ConfigError(f"vLLM: a KV cache of shape {shape} has not {num_blocks} blocks first")
    order = sorted(range(1, cache.dim()), key=lambda axis: strides[axis], reverse=True)
    inner = [shape[axis] for axis in order]
    num_items = prod(inner)
    is_run = [strides[axis] for axis in order] == [
        prod(inner[at + 1 :]) for at in range(len(order))
    ]
    if not is_run or strides[0] != num_items:
        raise ConfigError(f"vLLM: a block of a KV cache of {shape}, {strides} is no run of bytes")
    size = cache.element_size()
    pages = torch.empty(0, dtype=torch.uint8, device=cache.device).set_(
        cast(Any, cache.untyped_storage()),
        cache.storage_offset() * size,
        (num_blocks, num_items * size),
        (num_items * size, 1),
    )
    return pages, f"{cache.dtype}:{inner}", _token_rows(inner)


def _token_rows(inner: list[int]) -> int:
    """Runs of tokens in a page whose numbers have these axes, outermost first; 0: not clear."""
    at = [axis for axis, size in enumerate(inner[:-1]) if size == BLOCK_TOKENS]
    return prod(inner[: at[0]]) if len(at) == 1 else 0
