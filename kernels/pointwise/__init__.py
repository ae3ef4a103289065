"""What stands between a decoder's products: norm, rotary embedding, gate; numba on a CPU, Triton on
a GPU.

Each is one pass over memory where torch makes four to ten, and reckons in float32 whatever the
elements are.
"""

from kernels.pointwise.interface import GELU_TANH, SILU, Heads, Norm, Rotary, Slots
from kernels.pointwise.select import (
    add_norm,
    gate,
    rms_norm,
    rotate,
    rotate_store,
    supports,
    warm_up,
)

__all__ = [
    "GELU_TANH",
    "SILU",
    "Heads",
    "Norm",
    "Rotary",
    "Slots",
    "add_norm",
    "gate",
    "rms_norm",
    "rotate",
    "rotate_store",
    "supports",
    "warm_up",
]
