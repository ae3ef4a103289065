"""Naive SGMV in float64: slow, obvious, the truth the others are measured against."""

import torch

from kernels.sgmv.interface import A, AdapterTables, B, Segments, Site
from kernels.sgmv.matrices import matrix, scales


def add_lora_reference(
    x: torch.Tensor,
    y: torch.Tensor,
    pool: torch.Tensor,
    layer: int,
    site: Site,
    segments: Segments,
    tables: AdapterTables,
) -> torch.Tensor:
    """``y[rows] + scale * (x[rows] A) B`` for each segment and target; nothing is changed.

    Args:
        x: ``[num_rows, num_in]``.
        y: ``[num_rows, num_out]``.
        pool: ``[num_pages, ...]``, contiguous.

    Returns:
        ``[num_rows, num_out]`` float64.
    """
    pages = pool.view(pool.shape[0], -1)
    out = y.double()
    for segment, line in enumerate(segments.lines.tolist()):
        rows = slice(int(segments.starts[segment]), int(segments.starts[segment + 1]))
        for target, column, width in zip(site.targets, site.columns, site.widths, strict=True):
            if line < 0 or not tables.ranks[line, target]:
                continue
            rank = int(tables.ranks[line, target])
            a = torch.zeros(rank, x.shape[1], dtype=torch.float64)
            b = torch.zeros(rank, width, dtype=torch.float64)
            matrix(pages, layer, tables, line, target, A, a)
            matrix(pages, layer, tables, line, target, B, b)
            scale = scales(pages, layer, tables, line)[target].double()
            out[rows, column : column + width] += scale * (x[rows].double() @ a.T) @ b
    return out
