"""Pages copied and hashed in one pass on one core of the CPU (numba).

The threads that copy pages call it beside the steps: so it holds no lock of Python's, and wakes no
other thread. A stripe of 64 bytes is one vector: what the compiler makes of it is as wide as the
core is. Hashing costs no time beside the copy, which waits for memory.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.cgutils import raw_memcpy
from numba.extending import intrinsic

from kernels.compile_lock import call_compiled
from kernels.page_sums import xxh3
from kernels.page_sums.xxh3 import Words

_WORD = ir.IntType(64)
_STRIPE = ir.VectorType(_WORD, 8)
_NEIGHBOURS = ir.Constant(ir.VectorType(ir.IntType(32), 8), [1, 0, 3, 2, 5, 4, 7, 6])
_STRIPES_IN_BLOCK = xxh3.BLOCK_BYTES // xxh3.STRIPE_BYTES
_SECRET = np.frombuffer(xxh3.SECRET, np.uint8)
_FIRST = xxh3.first_accumulators()
_MERGE = xxh3.secret_words(xxh3.MERGE_AT, 8)
_LAST_AT, _PRIME64_1, _AVALANCHE = xxh3.LAST_AT, xxh3.PRIME64_1, xxh3.AVALANCHE
_U64 = np.uint64
_LOW = _U64(0xFFFFFFFF)


def copy(target: Any, target_pages: Any, source: Any, source_pages: Any) -> None:
    """``target[target_pages] = source[source_pages]``.

    Args:
        target, source: uint8 ``[pages, page_bytes]``, contiguous.
        target_pages, source_pages: int64, of one length.
    """
    call_compiled(_copy, source.flags.writeable, target, target_pages, source, source_pages)


def copy_summed(target: Any, target_pages: Any, source: Any, source_pages: Any) -> Words:
    """`copy`, of pages of at least `xxh3.LENGTH_MIN` bytes; returns xxh3-64 of each."""
    return _summed(target, target_pages, source, source_pages, is_copied=True)


def sums(pages: Any, at: Any) -> Words:
    """xxh3-64 of the pages `at`, int64; of at least `xxh3.LENGTH_MIN` bytes."""
    return _summed(pages, at, pages, at, is_copied=False)


def _summed(
    target: Any, target_pages: Any, source: Any, source_pages: Any, *, is_copied: bool
) -> Words:
    found = np.empty(len(source_pages), np.uint64)
    call_compiled(
        _sum, (target.flags.writeable, source.flags.writeable), target, target_pages, source,
        source_pages, is_copied, _SECRET, _FIRST, _MERGE, found,
    )  # fmt: skip
    return found


# Of compiled code only: addresses as uint64, which vectors are read from and written to.


def _at(builder: Any, address: Any, offset: int) -> Any:
    moved = builder.add(address, ir.Constant(_WORD, offset)) if offset else address
    return builder.inttoptr(moved, _STRIPE.as_pointer())


def _load(builder: Any, address: Any, offset: int = 0) -> Any:
    return builder.load(_at(builder, address, offset), align=8)


def _store(builder: Any, value: Any, address: Any, offset: int = 0) -> None:
    builder.store(value, _at(builder, address, offset), align=8)


def _all(word: int) -> Any:
    return ir.Constant(_STRIPE, [word] * 8)


def _add_stripe(builder: Any, accumulators: Any, data: Any, key: Any) -> Any:
    """The accumulators after one more stripe."""
    mixed = builder.xor(data, key)
    low, high = builder.and_(mixed, _all(0xFFFFFFFF)), builder.lshr(mixed, _all(32))
    swapped = builder.shuffle_vector(data, data, _NEIGHBOURS)
    return builder.add(builder.add(accumulators, swapped), builder.mul(low, high))


def _emit_stripe(builder: Any, args: Any, *, is_copied: bool) -> None:
    accumulators, data, target, secret = args
    stripe = _load(builder, data)
    if is_copied:
        _store(builder, stripe, target)
    value = _add_stripe(builder, _load(builder, accumulators), stripe, _load(builder, secret))
    _store(builder, value, accumulators)


def _emit_block(builder: Any, args: Any, *, is_copied: bool) -> None:
    accumulators, data, target, secret = args
    value = _load(builder, accumulators)
    for number in range(_STRIPES_IN_BLOCK):
        stripe = _load(builder, data, xxh3.STRIPE_BYTES * number)
        if is_copied:
            _store(builder, stripe, target, xxh3.STRIPE_BYTES * number)
        value = _add_stripe(builder, value, stripe, _load(builder, secret, 8 * number))
    value = builder.xor(value, builder.lshr(value, _all(47)))
    value = builder.xor(value, _load(builder, secret, xxh3.SCRAMBLE_AT))
    _store(builder, builder.mul(value, _all(xxh3.PRIME32_1)), accumulators)


def _intrinsic(emit: Callable[..., None], *, is_copied: bool) -> Any:
    """A function of four addresses: accumulators, data, target of a copy, secret."""

    @intrinsic
    def call(typing_context, accumulators, data, target, secret):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            emit(builder, args, is_copied=is_copied)
            return context.get_dummy_value()

        return types.void(types.uint64, types.uint64, types.uint64, types.uint64), generate

    return call


_block, _stripe = (_intrinsic(emit, is_copied=False) for emit in (_emit_block, _emit_stripe))
_copied_block, _copied_stripe = (
    _intrinsic(emit, is_copied=True) for emit in (_emit_block, _emit_stripe)
)


@intrinsic
def _move(typing_context, to, of, num_bytes):  # type: ignore[no-untyped-def]
    """Copy so many bytes from one address to another one."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        byte = ir.IntType(8).as_pointer()
        target, source = (builder.inttoptr(address, byte) for address in args[:2])
        raw_memcpy(builder, target, source, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.int64), generate


@njit(inline="always")
def _fold(a, b):  # type: ignore[no-untyped-def]
    """Both halves of the product of two words, one upon the other."""
    a_low, a_high, b_low, b_high = a & _LOW, a >> _U64(32), b & _LOW, b >> _U64(32)
    low, cross = a_low * b_low, a_high * b_low
    middle = (low >> _U64(32)) + (cross & _LOW) + a_low * b_high
    high = (cross >> _U64(32)) + (middle >> _U64(32)) + a_high * b_high
    return high ^ (middle << _U64(32) | low & _LOW)


@njit(inline="always")
def _end(accumulators, merge, num_bytes):  # type: ignore[no-untyped-def]
    value = _U64(num_bytes) * _U64(_PRIME64_1)
    for pair in range(0, 8, 2):
        value += _fold(accumulators[pair] ^ merge[pair], accumulators[pair + 1] ^ merge[pair + 1])
    value ^= value >> _U64(37)
    value *= _U64(_AVALANCHE)
    return value ^ (value >> _U64(32))


@njit(error_model="numpy", nogil=True, cache=True)
def _sum(  # type: ignore[no-untyped-def]
    target, target_pages, source, source_pages, is_copied, secret, first, merge, sums
):
    num_bytes = source.shape[1]
    num_blocks = (num_bytes - 1) // 1024
    num_stripes = (num_bytes - 1 - 1024 * num_blocks) // 64
    values = np.empty(8, np.uint64)
    to, keys = _U64(values.ctypes.data), _U64(secret.ctypes.data)
    for number in range(len(source_pages)):
        values[:] = first
        data = begin = _U64(source[source_pages[number]].ctypes.data)
        target_at = _U64(target[target_pages[number]].ctypes.data) - begin
        for _ in range(num_blocks):
            if is_copied:
                _copied_block(to, data, target_at + data, keys)
            else:
                _block(to, data, data, keys)
            data += _U64(1024)
        for stripe in range(num_stripes + 1):
            key = keys + _U64(8 * stripe)
            if stripe == num_stripes:  # the last one ends with the page
                data, key = begin + _U64(num_bytes - 64), keys + _U64(_LAST_AT)
            if is_copied:
                _copied_stripe(to, data, target_at + data, key)
            else:
                _stripe(to, data, data, key)
            data += _U64(64)
        sums[number] = _end(values, merge, num_bytes)


@njit(nogil=True, cache=True)
def _copy(target, target_pages, source, source_pages):  # type: ignore[no-untyped-def]
    num_bytes = source.shape[1]
    for number in range(len(source_pages)):
        to = _U64(target[target_pages[number]].ctypes.data)
        _move(to, _U64(source[source_pages[number]].ctypes.data), num_bytes)
