"""New keys and values into their pages on a CPU, in one pass (numba): torch's indexing takes two,
and five times as long for the few rows of a decode.
"""

import numpy as np
import torch
from numba import njit

from kernels.compile_lock import call_compiled
from kernels.paged_attention.raw import raw, raw_rows


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
    call_compiled(
        _store, key.dtype, *raw_rows(key), *raw_rows(value), raw(pool), slot_pages.numpy(),
        slot_offsets.numpy(),
    )  # fmt: skip


@njit(error_model="numpy", nogil=True, cache=True)
def _store(  # type: ignore[no-untyped-def]
    key, key_row, key_head, value, value_row, value_head, pool, pages, offsets
):
    num_heads, head_dim = pool.shape[2], pool.shape[4]
    for token in range(pages.shape[0]):
        page = np.int64(pages[token])
        if page < 0:
            continue
        offset = np.int64(offsets[token])
        for head in range(num_heads):
            of_key = token * key_row + head * key_head
            of_value = token * value_row + head * value_head
            for d in range(head_dim):
                pool[page, 0, head, offset, d] = key[of_key + d]
                pool[page, 1, head, offset, d] = value[of_value + d]
