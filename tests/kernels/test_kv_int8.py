"""Pages as int8: how far off they are, what comes back twice, and that both ways make the same
bytes."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.kv_int8 import cpu, select, torch_ops
from kernels.kv_int8.torch_ops import CODE_MAX, SCALE_MIN

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
BLOCK_TOKENS = 64
POISON = 0xA5  # what stands where nothing was written

Quantize = Callable[[torch.Tensor, int], torch.Tensor]


def by_page(page: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """As copies of pages in host memory do it."""
    stored = np.full(torch_ops.stored_bytes(page.shape), POISON, np.uint8)
    select.quantize_page(page, stored, num_tokens)
    return torch.from_numpy(stored)


def by_torch(page: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """As a GPU does it."""
    return torch_ops.quantize(page[None], num_tokens)[0]


WAYS = [by_page, by_torch]


def widened(stored: torch.Tensor, page: torch.Tensor) -> torch.Tensor:
    """What comes back, by both ways the same."""
    again = torch.full_like(page, torch.nan)
    select.dequantize_page(stored.numpy(), again)
    assert torch.equal(again, torch_ops.dequantize(stored[None], page.shape, page.dtype)[0])
    return again


def scales_of(stored: torch.Tensor, page: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(select.split_stored(stored.numpy(), page.shape)[1].copy())


def numbers(seed: int, dtype: torch.dtype, rows: int, head_dim: int) -> torch.Tensor:
    """Channels of very different sizes, one of nothing but zeros, one with a single number."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-20, 12, (rows, 1, head_dim), generator=generator)
    page = torch.randn((rows, BLOCK_TOKENS, head_dim), generator=generator) * 2.0**exponents
    page[0, :, 0] = 0
    page[0, 1:, head_dim - 1] = 0
    return page.to(dtype)


@given(
    seed=st.integers(0, 1 << 30),
    dtype=st.sampled_from(DTYPES),
    rows=st.sampled_from([2, 6]),
    head_dim=st.sampled_from([3, 16, 40]),
    num_tokens=st.integers(1, BLOCK_TOKENS),
)
@settings(max_examples=40, deadline=None)
def test_each_element_is_off_by_half_a_scale_at_most_and_is_rounded_once(
    seed: int, dtype: torch.dtype, rows: int, head_dim: int, num_tokens: int
) -> None:
    page = numbers(seed, dtype, rows, head_dim)
    page[:, num_tokens:] = torch.nan  # of others: it counts for nothing and does not come along
    made = [way(page, num_tokens) for way in WAYS]
    assert torch.equal(*made)
    stored = made[0]
    back = widened(stored, page)
    assert not back[:, num_tokens:].any()

    scales = scales_of(stored, page)
    exact = page[:, :num_tokens].double()
    greatest = exact.abs().amax(1)
    assert (scales.double() * CODE_MAX >= greatest).all(), "no code is cut off"
    assert (scales <= (greatest / CODE_MAX * (1 + 2**-15)).clamp_min(SCALE_MIN)).all()
    error = (back[:, :num_tokens].double() - exact).abs()
    digits = torch.finfo(dtype)
    own = torch.maximum(back[:, :num_tokens].double().abs() * digits.eps / 2,
                        torch.tensor(digits.smallest_normal * digits.eps))  # fmt: skip
    assert (error <= scales[:, None].double() / 2 * (1 + 1e-5) + own).all()
    for way in WAYS:
        assert torch.equal(way(back, num_tokens), stored), "the second time changes nothing"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_greatest_of_a_channel_comes_back_as_it_was(dtype: torch.dtype, way: Quantize) -> None:
    page = numbers(3, dtype, 2, 16)
    back = widened(way(page, BLOCK_TOKENS), page)
    places = page.float().abs().argmax(1, keepdim=True)
    rtol = 2**-16 if dtype == torch.float32 else 0
    torch.testing.assert_close(back.gather(1, places), page.gather(1, places), rtol=rtol, atol=0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_at_the_ends_stay_numbers(dtype: torch.dtype, way: Quantize) -> None:
    page = torch.zeros((2, BLOCK_TOKENS, 3), dtype=dtype)
    page[0, 0] = torch.tensor([2.0**127 * (1 - 2**-8), -(2.0**-126), 2.0**-133])
    back = widened(way(page, BLOCK_TOKENS), page)
    assert back.isfinite().all()
    torch.testing.assert_close(back, page, rtol=2**-16, atol=SCALE_MIN / 2)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_a_channel_that_is_not_finite_shows_in_its_scale_and_in_no_other(
    dtype: torch.dtype, way: Quantize, broken: float
) -> None:
    page = numbers(1, dtype, 6, 16)
    page[2, 5, 7] = broken
    is_finite = scales_of(way(page, BLOCK_TOKENS), page).isfinite()
    assert not is_finite[2, 7] and is_finite.sum() == 6 * 16 - 1


@pytest.mark.parametrize("way", WAYS)
def test_nan_of_every_kind_is_found(way: Quantize) -> None:
    """Whatever its bits are: those of the last one become zero when something is added."""
    bits = torch.tensor([0x7F800001, 0x7FC00000, 0x7FFFFFFF, -1], dtype=torch.int32)
    page = torch.zeros((1, BLOCK_TOKENS, 4))
    page[0, 9] = bits.view(torch.float32)
    assert not scales_of(way(page, BLOCK_TOKENS), page).isfinite().any()


def test_the_compiled_way_is_the_one_that_is_tested() -> None:
    assert vars(select)["cpu"] is cpu
    taken = [cpu.supports(torch.zeros(1, dtype=dtype)) for dtype in DTYPES]
    assert taken == [True, True, False]
