"""What others do in place of SGMV (Punica, 7.1), to be measured against: they want all weights
as one tensor, filled up to the largest rank, with the scale in B.
"""

import torch


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
