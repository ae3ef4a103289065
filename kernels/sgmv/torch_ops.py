"""SGMV made of torch's products.

`add_lora_loop` goes over adapters one by one: it serves devices that have no kernel of ours. The
others are what others do (Punica, 7.1), to be measured against: they want all weights as one
tensor, filled up to the largest rank, with the scale in B.
"""

import torch

from kernels.sgmv.interface import A, AdapterTables, B, Segments, Site
from kernels.sgmv.matrices import matrix, scales


def add_lora_loop(
    x: torch.Tensor,
    y: torch.Tensor,
    pool: torch.Tensor,
    layer: int,
    site: Site,
    segments: Segments,
    tables: AdapterTables,
) -> None:
    """As `select.add_lora`, on any device of torch's."""
    pages = pool.view(pool.shape[0], -1)
    starts = segments.starts.tolist()
    for segment, line in enumerate(segments.lines.tolist()):
        rows = slice(starts[segment], starts[segment + 1])
        if line >= 0 and rows.stop > rows.start:
            _add(x[rows], y[rows], pages, layer, site, tables, line)


def _add(
    x: torch.Tensor,
    y: torch.Tensor,
    pages: torch.Tensor,
    layer: int,
    site: Site,
    tables: AdapterTables,
    line: int,
) -> None:
    """One adapter's part: a product for all A of the site, one for each B."""
    ranks = tables.ranks[line, list(site.targets)].tolist()
    if not any(ranks):
        return
    a = torch.empty(sum(ranks), x.shape[1], dtype=torch.float32, device=x.device)
    for target, part in zip(site.targets, a.split(ranks), strict=True):
        matrix(pages, layer, tables, line, target, A, part)
    shrunk = (x.float() @ a.T).split(ranks, dim=1)
    factors = scales(pages, layer, tables, line)
    for index, target in enumerate(site.targets):
        if not ranks[index]:
            continue
        column, width = site.columns[index], site.widths[index]
        b = torch.empty(ranks[index], width, dtype=torch.float32, device=x.device)
        matrix(pages, layer, tables, line, target, B, b)
        # Reckoned in float32, and rounded once where `y` is something smaller.
        y[:, column : column + width] += (shrunk[index] * factors[target]) @ b


def add_lora_dense_loop(
    x: torch.Tensor,
    y: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    of_segment: list[tuple[int, int, int]],
) -> None:
    """``y[rows] += (x[rows] A) B``, one adapter after another, `x A` in the dtype of `x`.

    Args:
        x, y, a, b: as of `add_lora_gather_bmm`.
        of_segment: adapter, first row and the row behind the last, of each segment.
    """
    for adapter, first, last in of_segment:
        y[first:last] += (x[first:last] @ a[adapter]) @ b[adapter]


def add_lora_gather_bmm(
    x: torch.Tensor, y: torch.Tensor, a: torch.Tensor, b: torch.Tensor, of_row: torch.Tensor
) -> None:
    """``y[t] += (x[t] A[of_row[t]]) B[of_row[t]]``: weights are copied together, then multiplied.

    Args:
        x: ``[num_rows, num_in]``.
        y: ``[num_rows, num_out]``, same dtype.
        a: ``[num_adapters, num_in, rank_max]``, same dtype, zeros behind an adapter's rank.
        b: ``[num_adapters, rank_max, num_out]``, likewise, with the scale in it.
        of_row: int64 ``[num_rows]``: adapter of each row.
    """
    add_lora_bmm(x, y, a.index_select(0, of_row), b.index_select(0, of_row))


def add_lora_bmm(x: torch.Tensor, y: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """``y[t] += (x[t] A[t]) B[t]``: `add_lora_gather_bmm` after its copies."""
    y += torch.bmm(torch.bmm(x[:, None], a), b)[:, 0]
