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
    """1 / (1 + e^-x) in float32; vectorizes, unlike a call into libm.

    Its relative error is at most 6e-7 where |x| <= 8, and grows to 4e-6 at x = -87, because float32
    has fewer digits behind the point there. Below that it stays at 1.6e-38.
    """
    bounded = min(max(-x, np.float32(-87.0)), np.float32(87.0))
    y = bounded * np.float32(1.4426950408889634)
    whole = np.floor(y)
    f = y - whole
    # 2^f for f in [0, 1), within 2e-9: the polynomial of least greatest error, not Taylor's.
    series = np.float32(0.0012467843) + f * np.float32(0.00021612926)
    series = np.float32(0.009675452) + f * series
    series = np.float32(0.05548528) + f * series
    series = np.float32(0.2402293056) + f * series
    series = np.float32(0.6931470444) + f * series
    power = np.uint32(np.int32(whole) + np.int32(127)) << np.uint32(23)
    e = (np.float32(1.0) + f * series) * float_of_bits(power)
    return np.float32(1.0) / (np.float32(1.0) + e)
