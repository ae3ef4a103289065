"""Pages of KV that leave the pool as int8, with a scale for each channel, and come back rounded.

What stays in the pool is exact. Below it, in the arena, on disks and with other hosts, there are
only pages of another size under other keys (`LoadedModel.fingerprint`).
"""

from dataclasses import dataclass

import numpy as np
import torch

from kernels.kv_int8.select import dequantize_page, quantize_page, split_stored
from kernels.kv_int8.torch_ops import stored_bytes
from services.worker.device.copying.copies import OVER, Copy, CopyFailed, HostCopier
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

    def is_sound(self, stored: Bytes) -> bool:
        """Whether all that a stored page stands for are numbers."""
        return bool(np.isfinite(split_stored(stored, self.page)[1]).all())


@dataclass(frozen=True, slots=True, eq=False)
class SoundCopy:
    """A copy to the arena that fails if a channel of it was not finite: a page that is broken must
    not be kept, and one broken number would take its whole channel with it.

    Attributes:
        pages: where it goes.
    """

    copy: Copy
    form: Int8Pages
    pages: list[Bytes]

    def is_over(self) -> bool:
        return self.copy.is_over()

    def wait(self) -> None:
        self.copy.wait()
        if not all(map(self.form.is_sound, self.pages)):
            raise CopyFailed("KV that is not finite has no int8 form")


class Int8HostCopier(HostCopier):
    """A `HostCopier` whose arenas hold int8: each page is rounded, or widened, as it is copied.

    Args:
        pool: ``[num_pages, 2, num_kv_heads, block_tokens, head_dim]``, contiguous.
    """

    def __init__(self, pool: torch.Tensor, form: Int8Pages) -> None:
        super().__init__(pool.view(torch.uint8).numpy().reshape(len(pool), -1))
        self._pages = pool.view(len(pool), *form.page)
        self._form = form

    def load(self, arena: Arena, arena_pages: list[int], pool_pages: list[int]) -> Copy:
        for source, target in zip(arena_pages, pool_pages, strict=True):
            dequantize_page(arena.pages[source], self._pages[target])
        return OVER

    def store(
        self,
        mark: object,
        pool_pages: list[int],
        arena: Arena,
        arena_pages: list[int],
        num_tokens: int = BLOCK_TOKENS,
    ) -> Copy:
        for source, target in zip(pool_pages, arena_pages, strict=True):
            quantize_page(self._pages[source], arena.pages[target], num_tokens)
        return SoundCopy(OVER, self._form, [arena.pages[page] for page in arena_pages])
