"""RMS norm, rotary embedding and gated activation of packed rows on the CPU (numba).

Called once or more a layer, also for a single row, so the call itself counts: tensors go in as
addresses, because unpacking them into arrays would take longer than the work. Rows of a prefill are
shared out among threads.
"""

from typing import Any

import numpy as np
import torch
from numba import carray, njit, prange

from kernels.bits import LOOSE, narrow, pointer, sigmoid, widen
from kernels.compile_lock import call_compiled
from kernels.pointwise.interface import SILU, rows_of

# Elements from which a second thread pays for being woken.
SHARED_FROM = 1 << 16

# Stands for the kind of the elements in a signature: bf16 as its bits, or float32.
_KINDS = {torch.bfloat16: np.zeros(1, np.uint16), torch.float32: np.zeros(1, np.float32)}


def supports(tensor: torch.Tensor) -> bool:
    """Whether these kernels take tensors like this one."""
    return tensor.device.type == "cpu" and tensor.dtype in _KINDS


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float) -> torch.Tensor:
    """See `select.rms_norm`; bf16 or float32."""
    width = x.shape[-1]
    if (rows := rows_of(x)) is None:
        return rms_norm(x.contiguous(), weight, eps, offset)
    num_outer, num_inner, outer, inner = rows
    out = torch.empty(x.shape, dtype=x.dtype)
    _call(
        _rms_norm if num_outer * num_inner * width < SHARED_FROM else _rms_norm_shared,
        x.dtype, x.data_ptr(), weight.data_ptr(), out.data_ptr(),
        num_outer, num_inner, width, outer, inner, eps, offset,
    )  # fmt: skip
    return out


def rotate(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `select.rotate`."""
    outs = []
    for x in (query, key):
        _, num_heads, num_tokens, width = x.shape
        _, head, token, _ = x.stride()
        out = torch.empty((1, num_tokens, num_heads, width), dtype=x.dtype)
        _call(
            _rotate if out.numel() < SHARED_FROM else _rotate_shared,
            x.dtype, x.data_ptr(), cos.data_ptr(), sin.data_ptr(), out.data_ptr(),
            num_tokens, num_heads, width, cos.shape[-1], token, head,
        )  # fmt: skip
        outs.append(out.transpose(1, 2))
    return outs[0], outs[1]


def gate(gate: torch.Tensor, up: torch.Tensor, activation: int) -> torch.Tensor:
    """See `select.gate`."""
    out = torch.empty(gate.shape, dtype=gate.dtype)
    width = gate.shape[-1]
    num_rows = gate.shape[-2]
    _call(
        _gate if num_rows * width < SHARED_FROM else _gate_shared,
        gate.dtype, gate.data_ptr(), up.data_ptr(), out.data_ptr(),
        num_rows, width, gate.stride(-2), up.stride(-2), activation,
    )  # fmt: skip
    return out


def warm_up(dtype: torch.dtype) -> None:
    """Compile everything for elements of this kind, so that no step waits for it."""
    for num_rows in (1, SHARED_FROM // 64):
        rows = torch.zeros((1, num_rows, 64), dtype=dtype)
        rms_norm(rows, rows[0, 0], 1.0, 0.0)
        rotate(rows[:, None], rows[:, None], rows, rows)
        gate(rows, rows, SILU)


def _call(function: Any, dtype: torch.dtype, *numbers: float) -> None:
    call_compiled(function, dtype, _KINDS[dtype], *numbers)


@njit(fastmath=LOOSE, error_model="numpy", inline="always")
def _row(kind, address, at, width):  # type: ignore[no-untyped-def]
    """`width` elements that begin `at` elements behind the address."""
    return carray(pointer(address + at * kind.itemsize), width, kind.dtype)


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True)
def _rms_norm(kind, x, weight, out, num_outer, num_inner, width, outer, inner, eps, offset):  # type: ignore[no-untyped-def]
    scales = _row(kind, weight, 0, width)
    for i in range(num_outer):
        for j in range(num_inner):
            source = _row(kind, x, i * outer + j * inner, width)
            target = _row(kind, out, (i * num_inner + j) * width, width)
            total = np.float32(0.0)
            for d in range(width):
                value = widen(source[d])
                total += value * value
            mean = total / np.float32(width)
            scale = np.float32(1.0) / np.sqrt(mean + np.float32(eps))
            for d in range(width):
                value = widen(source[d]) * scale * (np.float32(offset) + widen(scales[d]))
                target[d] = narrow(value, target[d])


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True, parallel=True)
def _rms_norm_shared(kind, x, weight, out, num_outer, num_inner, width, outer, inner, eps, offset):  # type: ignore[no-untyped-def]
    size = kind.itemsize
    for i in prange(num_outer):
        _rms_norm(
            kind, x + i * outer * size, weight, out + i * num_inner * width * size,
            1, num_inner, width, outer, inner, eps, offset,
        )  # fmt: skip


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True)
def _rotate(kind, x, cos, sin, out, num_tokens, num_heads, width, rotary, token, head):  # type: ignore[no-untyped-def]
    half = rotary // 2
    for t in range(num_tokens):
        c = _row(kind, cos, t * rotary, rotary)
        s = _row(kind, sin, t * rotary, rotary)
        for h in range(num_heads):
            source = _row(kind, x, t * token + h * head, width)
            target = _row(kind, out, (t * num_heads + h) * width, width)
            for d in range(half):
                a, b = widen(source[d]), widen(source[d + half])
                low = a * widen(c[d]) - b * widen(s[d])
                high = b * widen(c[d + half]) + a * widen(s[d + half])
                target[d] = narrow(low, target[d])
                target[d + half] = narrow(high, target[d])
            for d in range(rotary, width):
                target[d] = source[d]


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True, parallel=True)
def _rotate_shared(kind, x, cos, sin, out, num_tokens, num_heads, width, rotary, token, head):  # type: ignore[no-untyped-def]
    size = kind.itemsize
    for t in prange(num_tokens):
        _rotate(
            kind, x + t * token * size, cos + t * rotary * size, sin + t * rotary * size,
            out + t * num_heads * width * size, 1, num_heads, width, rotary, token, head,
        )  # fmt: skip


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True)
def _gate(kind, gate, up, out, num_rows, width, gate_stride, up_stride, activation):  # type: ignore[no-untyped-def]
    for t in range(num_rows):
        gates = _row(kind, gate, t * gate_stride, width)
        ups = _row(kind, up, t * up_stride, width)
        target = _row(kind, out, t * width, width)
        if activation == SILU:
            for d in range(width):
                g = widen(gates[d])
                target[d] = narrow(g * sigmoid(g) * widen(ups[d]), target[d])
        else:
            for d in range(width):
                g = widen(gates[d])
                cubic = g + np.float32(0.044715) * g * g * g
                share = sigmoid(np.float32(1.5957691216057308) * cubic)
                target[d] = narrow(g * share * widen(ups[d]), target[d])


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True, parallel=True)
def _gate_shared(kind, gate, up, out, num_rows, width, gate_stride, up_stride, activation):  # type: ignore[no-untyped-def]
    size = kind.itemsize
    for t in prange(num_rows):
        _gate(
            kind, gate + t * gate_stride * size, up + t * up_stride * size,
            out + t * width * size, 1, width, gate_stride, up_stride, activation,
        )  # fmt: skip
