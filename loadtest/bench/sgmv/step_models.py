"""How well the papers' models of a step with adapters tell its time, and ours."""

from typing import Any

import numpy as np


def fit_models(rows: list[dict[str, Any]], kernel: str = "sgmv") -> dict[str, dict[str, Any]]:
    """Least squares of a kernel's milliseconds over all cells.

    `padded` and `unpadded` are CaraServe's for its two kernels: size of the batch times the largest
    rank, and the sum of the rows' ranks. `distinct` takes the bytes of different adapters, and
    the rows times their ranks, as products cost that.

    Returns:
        for each: ``r2``, and ``ms``: the constant, then what a unit of each number adds.
    """
    times = [row[kernel] for row in rows]
    return {name: _fit(numbers, times) for name, numbers in numbers_of(rows).items()}


def numbers_of(rows: list[dict[str, Any]]) -> dict[str, list[list[int]]]:
    """What each model goes by: its numbers, each of all cells."""
    batch_times_max = [row["batch"] * max(row["ranks_of_rows"]) for row in rows]
    sums = [sum(row["ranks_of_rows"]) for row in rows]
    adapter_bytes = [row["adapter_bytes"] for row in rows]
    return {
        "padded": [batch_times_max],
        "unpadded": [sums],
        "distinct": [adapter_bytes, sums],
    }


def _fit(numbers: list[list[int]], times: list[float]) -> dict[str, Any]:
    """
    >>> _fit([[1, 2, 3]], [5.0, 7.0, 9.0])
    {'r2': 1.0, 'ms': [3.0, 2.0]}
    """
    matrix = np.array([np.ones(len(times)), *numbers], float).T
    measured = np.array(times)
    factors, *_ = np.linalg.lstsq(matrix, measured, rcond=None)
    left = float(np.square(measured - matrix @ factors).sum())
    spread = float(np.square(measured - measured.mean()).sum())
    r2 = 1.0 - left / spread if spread else 1.0
    return {"r2": round(r2, 4), "ms": [float(f"{factor:.4g}") for factor in factors]}
