"""New keys and values into their pages on a CPU, in one pass (numba): torch's indexing takes two,
and five times as long for the few rows of a decode.
"""

import numpy as np
import torch
from numba import njit

from kernels.compile_lock import call_compiled
from kernels.paged_attention.raw import raw


def store_kv_cpu(
    key: torch.Tensor,
    value: torch.Tensor,
    pool: torch.Tensor,
    slot_pages: torch.Tensor,
    slot_offsets: torch.Tensor,
) -> None:
    """As `select.store_kv`; what is padding is not written.

    Args:
        key, value: bf16 or float32 ``[num_tokens, num_kv_heads, head_dim]``, last dimension
            contiguous.
    """
    arrays = raw(key), raw(value), raw(pool), slot_pages.numpy(), slot_offsets.numpy()
    call_compiled(_store, (key.dtype, key.is_contiguous(), value.is_contiguous()), *arrays)


@njit(error_model="numpy", nogil=True, cache=True)
def _store(key, value, pool, pages, offsets):  # type: ignore[no-untyped-def]
    for token in range(key.shape[0]):
        page = np.int64(pages[token])
        if page < 0:
            continue
        offset = np.int64(offsets[token])
        for head in range(key.shape[1]):
            for d in range(key.shape[2]):
                pool[page, 0, head, offset, d] = key[token, head, d]
                pool[page, 1, head, offset, d] = value[token, head, d]
