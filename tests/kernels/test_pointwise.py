"""Norm, rotary embedding and gate against torch, on odd shapes and strides: on the CPU, and on a
GPU or in Triton's interpreter.
"""

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from kernels.pointwise import GELU_TANH, SILU, Heads, Norm, Rotary, Slots
from tests.kernels.interpreter import DEVICE, IS_INTERPRETED, long

ON_GPU = pytest.param("triton", marks=pytest.mark.gpu)
DTYPES = [torch.float32, torch.bfloat16]
ROUNDED = 2**-7 if IS_INTERPRETED else 2**-8  # the interpreter cuts off what bf16 has no room for
# One row, few, and enough for a second thread.
ROWS = [1, 3, 33] if IS_INTERPRETED else [1, 3, 33, 1300]


@pytest.fixture(params=["triton"] if IS_INTERPRETED else ["cpu", "plain", ON_GPU])
def kernels(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The kernels of one device; what is made meanwhile is there."""
    if request.param in {"cpu", "plain"}:
        yield import_module(f"kernels.pointwise.{request.param}")
        return
    pytest.importorskip("triton", reason="Triton is not installed")
    from kernels.pointwise import triton

    torch.set_default_device(DEVICE)
    yield triton
    torch.set_default_device(None)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    drawn = 2 * torch.randn(shape, generator=generator, device="cpu")
    return drawn.to(torch.get_default_device(), dtype)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal but for one rounding to the kind of `got`."""
    tolerance = 1e-5 if got.dtype == torch.float32 else ROUNDED
    torch.testing.assert_close(got.float(), want, atol=1e-6, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(kernels: ModuleType, rows: int, dtype: torch.dtype, offset: float) -> None:
    x, weight = numbers(1, rows, 77, dtype=dtype), numbers(77, seed=1, dtype=dtype)
    scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)
    want = x.float() * scale * (offset + weight.float())
    close(kernels.rms_norm(x, weight, 1e-5, offset), want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
def test_rms_norm_of_heads_in_place(kernels: ModuleType, rows: int, dtype: torch.dtype) -> None:
    """Heads of a merged product: by token or by head first, and as a strided slice."""
    product, weight = numbers(1, rows, 11 * 24, dtype=dtype), numbers(24, seed=1, dtype=dtype)
    heads = product[..., 24 : 6 * 24].view(1, rows, 5, 24)
    for x in (heads, heads.transpose(1, 2), product[..., :24]):
        want = F.rms_norm(x.float(), (24,), weight.float(), 1e-6)
        got = kernels.rms_norm(x, weight, 1e-6, 0.0)
        assert got.is_contiguous()
        close(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("rotary", [26, 12])
def test_rotate(kernels: ModuleType, rows: int, dtype: torch.dtype, rotary: int) -> None:
    product = numbers(1, rows, 6 * 26, dtype=dtype)
    before = product.clone()
    query = product[..., : 4 * 26].view(1, rows, 4, 26).transpose(1, 2)
    key = product[..., 4 * 26 :].view(1, rows, 2, 26).transpose(1, 2)
    cos, sin = (numbers(1, rows, rotary, seed=seed, dtype=dtype) for seed in (1, 2))
    got = kernels.rotate(query, key, cos, sin)
    for mine, x in zip(got, (query, key), strict=True):
        turned, rest = x[..., :rotary].float(), x[..., rotary:].float()
        low, high = turned.chunk(2, -1)
        want = turned * cos.float() + torch.cat((-high, low), -1) * sin.float()
        assert mine.shape == x.shape
        torch.testing.assert_close(
            mine.float(), torch.cat((want, rest), -1), atol=1e-5, rtol=ROUNDED
        )
    assert torch.equal(product, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
def test_gate(kernels: ModuleType, rows: int, dtype: torch.dtype) -> None:
    product = 4 * numbers(1, rows, 2 * 77, dtype=dtype)
    product[0, 0, :2] = torch.tensor([300.0, -300.0])
    gate, up = product.split(77, -1)
    close(kernels.gate(gate, up, SILU), F.silu(gate.float()) * up.float())
    want = F.gelu(gate.float(), approximate="tanh") * up.float()
    got = kernels.gate(gate, up, GELU_TANH).float()
    torch.testing.assert_close(got, want, atol=2e-4, rtol=ROUNDED)  # torch's 1 + tanh cancels


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_broken_row_stays_broken_and_alone(
    kernels: ModuleType, dtype: torch.dtype, poison: float
) -> None:
    """What is not finite is found in the logits, so no kernel may hide it or spread it."""
    x = numbers(1, 3, 32, dtype=dtype)
    x[0, 1, 5] = poison
    heads = x.view(1, 3, 2, 16).transpose(1, 2)
    ones = torch.ones((1, 3, 16), dtype=dtype)
    outs = [
        kernels.rms_norm(x, torch.ones(32, dtype=dtype), 1e-6, 0.0),
        kernels.gate(x, x, SILU),
        kernels.gate(x, x, GELU_TANH),
        kernels.rotate(heads, heads, ones, ones)[1].transpose(1, 2).reshape(1, 3, 32),
    ]
    for out in outs:
        assert out[0].isfinite().all(-1).tolist() == [True, False, True]


def normed(x: torch.Tensor, norm: Norm) -> torch.Tensor:
    """In the kind of its elements, as a layer of its own gives it."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps)
    return (wide * scale * (norm.offset + norm.weight.float())).to(x.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("has_after", [False, True])
@pytest.mark.parametrize("has_before", [False, True])
def test_add_norm(
    kernels: ModuleType, rows: int, dtype: torch.dtype, has_after: bool, has_before: bool
) -> None:
    residual, branch = numbers(rows, 77, dtype=dtype), numbers(rows, 77, seed=1, dtype=dtype)
    after = Norm(numbers(77, seed=2, dtype=dtype), 1e-5, 1.0) if has_after else None
    before = Norm(numbers(77, seed=3, dtype=dtype), 1e-6, 0.0) if has_before else None
    added = branch if after is None else normed(branch, after)
    total = residual + added * 0.5
    given = branch.clone()
    got = kernels.add_norm(residual, branch, 0.5, after, before)
    assert torch.equal(branch, given)
    wide = 3 * ROUNDED if dtype == torch.bfloat16 else 1e-5  # one rounding may shift the next
    torch.testing.assert_close(residual, total, atol=wide, rtol=wide)
    if before is None:
        assert got is residual
    else:
        close(got, normed(residual, before).float())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    ("rotary", "has_norms"),
    [(0, False), (12, True), long(0, True), long(12, False), long(26, False), long(26, True)],
)
def test_rotate_store(
    kernels: ModuleType, rows: int, dtype: torch.dtype, rotary: int, has_norms: bool
) -> None:
    """Heads of a merged product go to scattered places of a pool; padding goes nowhere."""
    product = numbers(rows, 8 * 26, dtype=dtype)
    query, key, value = product.view(rows, 8, 26).split([4, 2, 2], 1)
    pool = torch.zeros((rows + 2, 2, 2, 4, 26), dtype=dtype)
    pages = torch.randperm(rows, device="cpu", generator=torch.Generator("cpu").manual_seed(5))
    pages[-1] = -1
    slots = Slots(pages.to(pool.device).int(), torch.arange(rows).int() % 4)
    wide = torch.float32 if has_norms else dtype  # of tables: some models keep more digits there
    tables = [numbers(50, max(rotary, 2), seed=seed, dtype=wide) for seed in (1, 2)]
    at = (torch.arange(rows) * 7) % 50
    norms = [Norm(numbers(26, seed=seed, dtype=dtype), 1e-5, 1.0) for seed in (3, 4)]
    query_norm, key_norm = norms if has_norms else (None, None)
    got = kernels.rotate_store(
        Heads(query, key, value), pool, slots,
        Rotary(tables[0], tables[1], at) if rotary else None, query_norm, key_norm,
    )  # fmt: skip
    wants = []
    for x, norm in ((query, query_norm), (key, key_norm)):
        want = (x if norm is None else normed(x, norm)).float()
        if rotary:
            cos, sin = (table[at].float()[:, None] for table in tables)
            low, high = want[..., :rotary].chunk(2, -1)
            turned = want[..., :rotary] * cos + torch.cat((-high, low), -1) * sin
            want = torch.cat((turned, want[..., rotary:]), -1)
        wants.append(want)
    atol, rtol = 1e-5, 1e-5
    if dtype == torch.bfloat16:  # two roundings, of parts that cancel
        atol, rtol = 16 * ROUNDED, 2 * ROUNDED
    torch.testing.assert_close(got.float(), wants[0], atol=atol, rtol=rtol)
    places = [*zip(slots.pages.tolist(), slots.offsets.tolist(), strict=True)][:-1]
    for token, (page, offset) in enumerate(places):
        torch.testing.assert_close(
            pool[page, 0, :, offset].float(), wants[1][token], atol=atol, rtol=rtol
        )
        assert torch.equal(pool[page, 1, :, offset], value[token])
        pool[page, :, :, offset] = 0
    spare = pool[:-1] if IS_INTERPRETED or pool.is_cuda else pool  # a GPU pads into the last page
    assert not spare.any(), "nothing else was written"
