"""SGMV made of torch's products, adapter by adapter: for devices that have no kernel of ours."""

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
