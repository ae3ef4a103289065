"""What compiled kernels reckon with themselves, against float64."""

import numpy as np
import numpy.typing as npt
import pytest
from numba import njit

from kernels.bits import sigmoid

Floats = npt.NDArray[np.float32]


@njit  # type: ignore[untyped-decorator]
def fill(target: Floats, x: Floats) -> None:
    for index in range(len(x)):
        target[index] = sigmoid(x[index])


def sigmoids(x: Floats) -> Floats:
    target = np.full_like(x, np.nan)
    fill(target, x)
    return target


@pytest.mark.parametrize(("bound", "error_max"), [(8.0, 6e-7), (87.0, 4e-6)])
def test_a_sigmoid_is_as_exact_as_it_says(bound: float, error_max: float) -> None:
    x = np.linspace(-bound, bound, 1_000_001, dtype=np.float32)
    want = 1 / (1 + np.exp(-x.astype(np.float64)))
    error = np.abs(sigmoids(x) - want) / want
    assert error.max() <= error_max, f"{error.max()} at {x[error.argmax()]}"


def test_a_sigmoid_at_the_ends() -> None:
    far = sigmoids(np.array([-1e30, -np.inf, 88, 1e30, np.inf, np.nan], dtype=np.float32))
    assert (far[:2] >= 0).all() and (far[:2] < 2e-38).all()
    assert (far[2:5] == 1).all() and np.isnan(far[5])
