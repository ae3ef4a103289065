"""Which implementation serves which segments of a batch."""

import numpy as np
import torch

from kernels.sgmv.device import DeviceAdapterTables, DeviceSegments, on_host
from kernels.sgmv.interface import AdapterTables, Segments, Site
from kernels.sgmv.tables import make_tables
from kernels.sgmv.torch_ops import add_lora_loop
from kernels.triton_kernels import triton_kernels

try:
    from kernels.sgmv import chunk, cpu
except ImportError:  # numba is optional: the loop does everything, slower
    cpu = None  # type: ignore[assignment]

# From so many rows of one adapter on, packing its weights for AMX pays. (768 wide: at rank 8 from
# 256 on, at rank 16 from 64 to 128, at rank 64 from 32.) Torch's products in float32 were never
# faster than the streaming kernel, up to 512 rows and at every rank; twice as slow at rank 16.
CHUNK_FROM_ROWS = 128


def add_lora(
    x: torch.Tensor,
    y: torch.Tensor,
    pool: torch.Tensor,
    layer: int,
    site: Site,
    segments: Segments | DeviceSegments,
    tables: AdapterTables | DeviceAdapterTables,
) -> None:
    """``y[rows, columns] += scale * (x[rows] A) B``, in place, for each segment with an adapter and
    each target of the site that the adapter has.

    ``x A`` stays float32, so does the sum over B: `y` is rounded once.

    Args:
        x: ``[num_rows, num_in]`` bf16, fp16 or float32, last dimension contiguous.
        y: ``[num_rows, num_out]``, same dtype, or on a CPU float32; last dimension contiguous, rows
            may lie apart.
        pool: ``[num_pages, ...]``, same dtype, contiguous.
        layer: whose weights and scales are used.
        segments: cover the rows that have an adapter; others may be left out or have none.
        tables: hold the lines that the segments name. Both are on the host, or both on the
            tensors' device, where they are read by kernels that can be recorded.
    """
    if isinstance(segments, DeviceSegments):
        assert isinstance(tables, DeviceAdapterTables)
        if (fused := triton_kernels("sgmv", x.device)) is not None and fused.supports(x):
            fused.add_lora_triton(x, y, pool, layer, site, segments, tables)
            return
        segments, tables = on_host(segments, tables)
    assert isinstance(tables, AdapterTables)
    if cpu is None or not cpu.supports(x):
        add_lora_loop(x, y, pool, layer, site, segments, tables)
        return
    # Few batches have a segment so long, and looking for one takes as long as a small segment.
    if x.shape[0] < CHUNK_FROM_ROWS or not chunk.supports(x):
        cpu.add_lora_cpu(x, y, pool, layer, site, segments, tables)
        return
    cpu.add_lora_cpu(x, y, pool, layer, site, segments, tables, CHUNK_FROM_ROWS)
    chunk.add_lora_chunk(x, y, pool, layer, site, segments, tables, CHUNK_FROM_ROWS)


def warm_up(dtype: torch.dtype, dtype_out: torch.dtype | None = None) -> None:
    """Compile what serves tensors of this kind, so that the first request does not wait for it.

    Args:
        dtype_out: of `y`; None: as the others.
    """
    rows = torch.zeros((1, 1), dtype=dtype)
    out = torch.zeros((1, 1), dtype=dtype_out or dtype)
    if cpu is None or not cpu.supports(rows):
        return
    segments = Segments(np.zeros(2, np.int32), np.zeros(1, np.int32))
    arguments = rows, out, rows, 0, Site((0,), (0,), (1,)), segments, make_tables(1, 1)
    cpu.add_lora_cpu(*arguments)
    if chunk.supports(rows):
        segments.starts[1] = 1  # a row, which the adapter in the empty tables does nothing to
        chunk.add_lora_chunk(*arguments)
