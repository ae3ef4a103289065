"""Numbers as compiled kernels hold them: bf16 as bits, and float32 to reckon with (numba)."""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

# What a compiler may do with sums and products. Not that numbers are finite: NaN must stay NaN, so
# that a broken turn is noticed.
LOOSE = {"reassoc", "contract", "arcp", "nsz"}


@intrinsic
def float_of_bits(typing_context, bits):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def bits_of_float(typing_context, value):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@intrinsic
def pointer(typing_context, address):  # type: ignore[no-untyped-def]
    """A tensor's ``data_ptr()`` as what `numba.carray` takes (compiled code only)."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


def widen(raw):  # type: ignore[no-untyped-def]
    """A stored element as float32 (compiled code only)."""
    raise NotImplementedError


@overload(widen, inline="always")
def _overload_widen(raw):  # type: ignore[no-untyped-def]
    if raw == types.uint16:
        return lambda raw: float_of_bits(np.uint32(raw) << np.uint32(16))
    return lambda raw: np.float32(raw)  # noqa: PLW0108


def narrow(value, like):  # type: ignore[no-untyped-def]
    """A float32 as an element of the kind of `like` (compiled code only)."""
    raise NotImplementedError


@overload(narrow, inline="always")
def _overload_narrow(value, like):  # type: ignore[no-untyped-def]
    if like == types.uint16:

        def round_to_nearest_even(value, like):  # type: ignore[no-untyped-def]
            bits = bits_of_float(np.float32(value))
            odd = (bits >> np.uint32(16)) & np.uint32(1)
            return np.uint16((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))

        return round_to_nearest_even
    return lambda value, like: np.float32(value)


@njit(inline="always", fastmath=LOOSE, error_model="numpy")
def sigmoid(x):  # type: ignore[no-untyped-def]
    """1 / (1 + e^-x) in float32, relative error 4e-7; vectorizes, unlike a call into libm."""
    bounded = min(max(-x, np.float32(-87.0)), np.float32(87.0))
    y = bounded * np.float32(1.4426950408889634)
    whole = np.floor(y)
    f = y - whole
    series = np.float32(0.001333355814) + f * np.float32(0.000154035303)
    series = np.float32(0.009618129107) + f * series
    series = np.float32(0.055504108664) + f * series
    series = np.float32(0.240226506959) + f * series
    series = np.float32(0.693147180559) + f * series
    power = np.uint32(np.int32(whole) + np.int32(127)) << np.uint32(23)
    e = (np.float32(1.0) + f * series) * float_of_bits(power)
    return np.float32(1.0) / (np.float32(1.0) + e)
