"""Blocks of products in registers: four rank rows times one row of a segment, or four (numba).

LLVM's own vectorizer takes no loop that asks for memory ahead of time, and these wait for memory
most of the time: so each loop is written out here, in steps of one cache line of every rank row. A
step asks for the same line of the block that comes `next`. Addresses are in bytes.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

TOGETHER = 4  # rank rows, as tiles have them
LINE_BYTES = 64
_LANES = 16
_LOOSE = ("reassoc", "contract", "nsz")
_BYTE, _LONG, _FLOAT = ir.IntType(8), ir.IntType(64), ir.FloatType()
_FLOATS = ir.VectorType(_FLOAT, _LANES)
_WORDS = ir.VectorType(ir.IntType(32), _LANES)
_HALVES = ir.VectorType(ir.IntType(16), _LANES)


def _plus(builder: Any, address: Any, count: Any, size: Any) -> Any:
    """``address + count * size``"""
    as_long = [
        ir.Constant(_LONG, each) if isinstance(each, int) else each for each in (count, size)
    ]
    return builder.add(address, builder.mul(*as_long))


def _load(builder: Any, address: Any, kind: Any, align: int = 4) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=4)


def _widened(builder: Any, kind: Any, address: Any) -> Any:
    """16 elements as float32."""
    if kind.dtype != types.uint16:
        return _load(builder, address, _FLOATS)
    halves = _load(builder, address, _HALVES, align=2)
    shift = ir.Constant(_WORDS, [16] * _LANES)
    return builder.bitcast(builder.shl(builder.zext(halves, _WORDS), shift), _FLOATS)


def _multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c``, in one instruction where the machine has it."""
    return builder.fadd(builder.fmul(a, b, flags=_LOOSE), c, flags=_LOOSE)


def _function(builder: Any, name: str, returns: Any, *kinds: Any) -> Any:
    """One of LLVM's own."""
    kind = ir.FunctionType(returns, kinds)
    return builder.module.globals.get(name) or ir.Function(builder.module, kind, name)


def _ask_for(builder: Any, address: Any) -> None:
    """A cache line; the address need not be anybody's."""
    number = ir.IntType(32)
    ask = _function(
        builder, "llvm.prefetch.p0", ir.VoidType(), _BYTE.as_pointer(), number, number, number
    )
    place = builder.inttoptr(address, _BYTE.as_pointer())
    for_reading, keep_close, of_data = number(0), number(3), number(1)
    builder.call(ask, [place, for_reading, keep_close, of_data])


def _splat(builder: Any, value: Any) -> Any:
    one = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), value, ir.IntType(32)(0))
    return builder.shuffle_vector(one, one, ir.Constant(_WORDS, [0] * _LANES))


def _loop(
    builder: Any, count: Any, body: Callable[[Any, list[Any]], list[Any]], carried: list[Any]
) -> list[Any]:
    """``0 .. count`` (at least once); `body` gets the number and changes what is carried."""
    before = builder.block
    loop, after = builder.append_basic_block("steps"), builder.append_basic_block("after")
    builder.branch(loop)
    builder.position_at_end(loop)
    number = builder.phi(_LONG)
    number.add_incoming(_LONG(0), before)
    phis = [builder.phi(each.type) for each in carried]
    for phi, each in zip(phis, carried, strict=True):
        phi.add_incoming(each, before)
    changed = body(number, list(phis))
    following = builder.add(number, _LONG(1))
    number.add_incoming(following, builder.block)
    for phi, each in zip(phis, changed, strict=True):
        phi.add_incoming(each, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
    builder.position_at_end(after)
    return changed


def _make_shrink(num_rows: int) -> Any:
    @intrinsic
    def shrink(typing_context, kind, x, x_bytes, a, a_bytes, following, steps, out, out_bytes):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            x, x_bytes, a, a_bytes, following, steps, out, out_bytes = args[1:]
            width = kind.dtype.bitwidth // 8
            vectors = LINE_BYTES // width // _LANES

            def step(number: Any, sums: list[Any]) -> list[Any]:
                line = builder.mul(number, _LONG(LINE_BYTES))
                for rank in range(TOGETHER):
                    _ask_for(builder, builder.add(_plus(builder, following, rank, a_bytes), line))
                for vector in range(vectors):
                    at = builder.add(line, _LONG(vector * _LANES * width))
                    weights = [
                        _widened(builder, kind, builder.add(_plus(builder, a, rank, a_bytes), at))
                        for rank in range(TOGETHER)
                    ]
                    for row in range(num_rows):
                        mine = builder.add(_plus(builder, x, row, x_bytes), at)
                        value = _widened(builder, kind, mine)
                        for rank in range(TOGETHER):
                            place = row * TOGETHER + rank
                            sums[place] = _multiply_add(builder, value, weights[rank], sums[place])
                return sums

            zeros = ir.Constant(_FLOATS, [0.0] * _LANES)
            sums = _loop(builder, steps, step, [zeros] * (num_rows * TOGETHER))
            add_up = _function(builder, "llvm.vector.reduce.fadd.v16f32", _FLOAT, _FLOAT, _FLOATS)
            for row in range(num_rows):
                for rank in range(TOGETHER):
                    to = builder.add(_plus(builder, out, row, out_bytes), _LONG(4 * rank))
                    before = _load(builder, to, _FLOAT)
                    found = [before, sums[row * TOGETHER + rank]]
                    _store(builder, builder.call(add_up, found, fastmath=_LOOSE), to)
            return context.get_dummy_value()

        return types.void(kind, *[types.int64] * 8), generate

    return shrink


def _make_expand(num_rows: int) -> Any:
    @intrinsic
    def expand(  # type: ignore[no-untyped-def]
        typing_context, kind, shrunk, shrunk_bytes, scale, b, b_bytes, following, steps, sums,
        sums_bytes,
    ):  # fmt: skip
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            shrunk, shrunk_bytes, scale, b, b_bytes, following, steps, sums, sums_bytes = args[1:]
            width = kind.dtype.bitwidth // 8
            factors = []
            for row in range(num_rows):
                for rank in range(TOGETHER):
                    at = builder.add(_plus(builder, shrunk, row, shrunk_bytes), _LONG(4 * rank))
                    factor = builder.fmul(_load(builder, at, _FLOAT), scale)
                    factors.append(_splat(builder, factor))

            def step(number: Any, carried: list[Any]) -> list[Any]:
                line = builder.mul(number, _LONG(LINE_BYTES))
                for rank in range(TOGETHER):
                    _ask_for(builder, builder.add(_plus(builder, following, rank, b_bytes), line))
                for vector in range(LINE_BYTES // width // _LANES):
                    at = builder.add(line, _LONG(vector * _LANES * width))
                    weights = [
                        _widened(builder, kind, builder.add(_plus(builder, b, rank, b_bytes), at))
                        for rank in range(TOGETHER)
                    ]
                    for row in range(num_rows):
                        to = _plus(builder, sums, row, sums_bytes)
                        to = _plus(builder, to, at, 4 // width)
                        total = _load(builder, to, _FLOATS)
                        for rank in range(TOGETHER):
                            factor = factors[row * TOGETHER + rank]
                            total = _multiply_add(builder, factor, weights[rank], total)
                        _store(builder, total, to)
                return carried

            _loop(builder, steps, step, [])
            return context.get_dummy_value()

        longs = [types.int64] * 6
        return types.void(kind, types.int64, types.int64, types.float32, *longs), generate

    return expand


# ``out[row, rank] += x[row] . a[rank]`` over `steps` lines (at least one): float32 at `out`.
shrink_one, shrink_four = _make_shrink(1), _make_shrink(4)
# ``sums[row] += scale * sum of shrunk[row, rank] * b[rank]`` over `steps` lines of b.
expand_one, expand_four = _make_expand(1), _make_expand(4)
