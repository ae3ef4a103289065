"""What softmax is made of, for compiled kernels (numba).

NaN stays NaN, so that a broken turn is noticed.
"""

import math

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from kernels.bits import LOOSE, bits_of_float, float_of_bits
from kernels.paged_attention.interface import AttentionShape

LOG2_E = math.log2(math.e)
# Under every score, and finite: a difference of two is a number.
LOWEST = np.float32(-1e30)


def powers(shape: AttentionShape) -> tuple[np.float32, np.float32]:
    """Factor on ``q k``, and cap (0: none) of what `capped` makes of it, so that scores are
    powers of two."""
    if shape.softcap:
        return np.float32(2 * shape.scale * LOG2_E / shape.softcap), np.float32(
            shape.softcap * LOG2_E
        )
    return np.float32(shape.scale * LOG2_E), np.float32(0.0)


@njit(inline="always", error_model="numpy")
def first_seen(position, reach):  # type: ignore[no-untyped-def]
    """As `AttentionShape.first_seen`, of its `reach`."""
    if reach < 0:
        return position - position % -reach
    return max(0, position - reach + 1) if reach > 0 else 0


@intrinsic
def highest_of(typing_context, a, b):  # type: ignore[no-untyped-def]
    """The higher of two float32, NaN if one is; loops of it vectorize, as those of `max` do not."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType()] * 2)
        name = "llvm.maximum.f32"
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        return builder.call(function, args, fastmath=["nsz"])

    return types.float32(types.float32, types.float32), generate


# Added to a small float32 and taken away again, it leaves the nearest whole number; in between, the
# lowest bits are that number. (Neither may be reassociated: so no `LOOSE` there, and no inlining
# into what is.)
ROUNDING = np.float32(1.5 * 2**23)


@njit(fastmath={"contract"}, error_model="numpy")
def power_of_two(y):  # type: ignore[no-untyped-def]
    """2^y for y <= 0 in float32, relative error 2e-7; vectorizes, unlike a call into libm."""
    bounded = np.float32(-125.0) if y < np.float32(-125.0) else y  # and NaN stays what it is
    rounded = bounded + ROUNDING
    f = bounded - (rounded - ROUNDING)
    series = np.float32(0.001333355814) + f * np.float32(0.000154035303)
    series = np.float32(0.009618129107) + f * series
    series = np.float32(0.055504108664) + f * series
    series = np.float32(0.240226506959) + f * series
    series = np.float32(0.693147180559) + f * series
    power = (bits_of_float(rounded) << np.uint32(23)) + np.uint32(0x3F800000)
    return (np.float32(1.0) + f * series) * float_of_bits(np.uint32(power))


@njit(inline="always", fastmath=LOOSE, error_model="numpy")
def capped(score, cap):  # type: ignore[no-untyped-def]
    """``cap tanh(x)`` of a score that is 2 x log2(e)."""
    power = power_of_two(-abs(score))
    tanh = (np.float32(1.0) - power) / (np.float32(1.0) + power)
    return cap * (-tanh if score < np.float32(0.0) else tanh)
