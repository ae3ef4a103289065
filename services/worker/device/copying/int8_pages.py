"""Pages of KV that leave the pool as int8, with a scale for each channel, and come back rounded.

What stays in the pool is exact. Below it, in the arena, on disks and with other hosts, there are
only pages of another size under other keys (`LoadedModel.fingerprint`).
"""

from dataclasses import dataclass

import numpy as np
import torch

from kernels.kv_int8.select import dequantize_page, quantize_page
from kernels.kv_int8.torch_ops import stored_bytes
from kernels.page_sums.select import PageNumbers
from services.worker.device.copying.copies import (
    OVER,
    Copy,
    CopyFailed,
    HostCopier,
    Store,
    SummedByHost,
)
from shared.arena import Arena, Bytes
from shared.blocks import BLOCK_TOKENS

VERSION = 1  # of how stored pages are laid out and rounded; part of the keys


@dataclass(frozen=True, slots=True)
class Int8Pages:
    """Attributes:
    page: shape of one page in the pool, ``[2 * num_kv_heads, block_tokens, head_dim]``.
    """

    page: torch.Size

    @property
    def page_bytes(self) -> int:
        """Of a page below the pool."""
        return stored_bytes(self.page)

    def are_sound(self, pages: Bytes, at: PageNumbers) -> bool:
        """Whether all that these stored pages stand for are numbers."""
        scales = pages[np.asarray(at), self.page.numel() :].view(np.float32)
        return bool(np.isfinite(scales).all())


@dataclass(frozen=True, slots=True, eq=False)
class SoundCopy:
    """A copy to the arena that fails if a channel of it was not finite: a page that is broken must
    not be kept, and one broken number would take its whole channel with it.

    Attributes:
        pages, at: where its pages come to lie.
    """

    store: Store
    form: Int8Pages
    pages: Bytes
    at: PageNumbers

    def is_over(self) -> bool:
        return self.store.is_over()

    def wait(self) -> None:
        self.store.wait()
        if not self.form.are_sound(self.pages, self.at):
            raise CopyFailed("KV that is not finite has no int8 form")

    def checksums(self) -> list[int]:
        return self.store.checksums()


class Int8HostCopier(HostCopier):
    """A `HostCopier` whose arenas hold int8: each page is rounded, or widened, as it is copied.

    Args:
        pool: ``[num_pages, 2, num_kv_heads, block_tokens, head_dim]``, contiguous.
    """

    def __init__(self, pool: torch.Tensor, form: Int8Pages) -> None:
        super().__init__(pool.view(torch.uint8).numpy().reshape(len(pool), -1))
        self._pages = pool.view(len(pool), *form.page)
        self._form = form

    def load(self, arena: Arena, arena_pages: PageNumbers, pool_pages: PageNumbers) -> Copy:
        for source, target in zip(arena_pages, pool_pages, strict=True):
            dequantize_page(arena.pages[source], self._pages[target])
        return OVER

    def store(
        self,
        pool_pages: PageNumbers,
        arena: Arena,
        arena_pages: PageNumbers,
        num_tokens: int = BLOCK_TOKENS,
    ) -> Store:
        for source, target in zip(pool_pages, arena_pages, strict=True):
            quantize_page(self._pages[source], arena.pages[target], num_tokens)
        stored = SummedByHost(OVER, arena.pages, arena_pages)
        return SoundCopy(stored, self._form, arena.pages, arena_pages)
