"""Page copies between a CUDA pool and an arena of int8 pages: rounded and widened on the GPU, so
that the link carries int8 as well."""

import numpy as np
import torch

from kernels.kv_int8.torch_ops import dequantize, quantize
from kernels.page_copy import PageNumbers, copy_pages, on_device
from services.worker.device.copying.copies import Copy, Store
from services.worker.device.copying.cuda_copier import CudaLink, from_first
from services.worker.device.copying.int8_pages import Int8Pages, SoundCopy
from services.worker.device.copying.piecewise_copier import PiecewiseCopier
from shared.arena import Bytes
from shared.blocks import BLOCK_TOKENS


class CudaInt8Link(CudaLink):
    """A `CudaLink` whose host memory holds int8. Between the two, pages are in memory of the device
    that is taken on the stream of their copy and goes back to it.

    Args:
        pool: ``[num_pages, 2, num_kv_heads, block_tokens, head_dim]``, contiguous, on a CUDA
            device.
        compute: the stream that steps are launched on.
    """

    def __init__(self, pool: torch.Tensor, compute: torch.cuda.Stream, form: Int8Pages) -> None:
        super().__init__([pool], compute)
        self._pages = pool.view(len(pool), *form.page)
        self._form = form

    def load(self, source: Bytes, source_pages: PageNumbers, pool_pages: PageNumbers) -> Copy:
        with torch.cuda.stream(self._loads):
            stored = self._stored(len(source_pages))
            copy_pages(stored, np.arange(len(stored)), *from_first(source, source_pages))
            widened = dequantize(stored, self._form.page, self._pages.dtype)
            self._pages[self._numbers(pool_pages)] = widened
        return self._copy(self._loads, source)

    def store(
        self,
        pool_pages: PageNumbers,
        target: Bytes,
        target_pages: PageNumbers,
        num_tokens: int = BLOCK_TOKENS,
    ) -> Store:
        with torch.cuda.stream(self._stores):
            stored = quantize(self._pages[self._numbers(pool_pages)], num_tokens)
            store = self._store(target, target_pages, stored, np.arange(len(stored)))
        return SoundCopy(store, self._form, target, target_pages)

    def _stored(self, num_pages: int) -> torch.Tensor:
        shape = (num_pages, self._form.page_bytes)
        return torch.empty(shape, dtype=torch.uint8, device=self._pages.device)

    def _numbers(self, pages: PageNumbers) -> torch.Tensor:
        return on_device(self._pages.device, pages)[0].long()


def cuda_int8_copier(
    pool: torch.Tensor, compute: torch.cuda.Stream, form: Int8Pages
) -> PiecewiseCopier:
    """A `PageCopier` for a pool in device memory; arguments as of `CudaInt8Link`."""
    return PiecewiseCopier(CudaInt8Link(pool, compute, form))
