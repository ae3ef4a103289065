"""Checksums of many pages by one call are those of each page alone, on a core and on a device.

Those of a device need a GPU, or Triton's interpreter.
"""

import numpy as np
import numpy.typing as npt
import pytest
import torch
import xxhash

from kernels.page_sums import select
from kernels.page_sums.xxh3 import BLOCK_BYTES, LENGTH_MIN
from tests.kernels.interpreter import DEVICE, IS_INTERPRETED

SIZES = [LENGTH_MIN, 256, 1000, BLOCK_BYTES, BLOCK_BYTES + 1, 33_280, 40_001]
AT, TO = [3, 0, 4, 1], [5, 1, 0, 6]


def some_pages(page_bytes: int) -> npt.NDArray[np.uint8]:
    generator = np.random.default_rng(page_bytes)
    return generator.integers(0, 255, (7, page_bytes), dtype=np.uint8)


def known_sums(pages: npt.NDArray[np.uint8]) -> list[int]:
    return [xxhash.xxh3_64_intdigest(pages[at].data) for at in AT]


@pytest.mark.skipif(IS_INTERPRETED, reason="runs no kernel of Triton's")
@pytest.mark.parametrize("has_numba", [True, False], ids=["numba", "plain"])
@pytest.mark.parametrize("page_bytes", [1, 240, *SIZES])
def test_pages_are_copied_and_summed_and_no_others(
    page_bytes: int, has_numba: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "COMPILED_MIN_BYTES", LENGTH_MIN)
    if not has_numba:
        monkeypatch.setattr(select, "_loaded", lambda: None)
    pages = some_pages(page_bytes)
    wanted = np.full_like(pages, 0xA5)
    wanted[TO] = pages[AT]
    summed, copied = np.full_like(pages, 0xA5), np.full_like(pages, 0xA5)
    assert select.page_sums(pages, AT) == known_sums(pages)
    assert select.copy_pages_summed(summed, TO, pages, AT) == known_sums(pages)
    select.copy_pages(copied, TO, pages, AT)
    assert (summed == wanted).all() and (copied == wanted).all()


@pytest.mark.skipif(not (IS_INTERPRETED or torch.cuda.is_available()), reason="needs a CUDA device")
@pytest.mark.parametrize("page_bytes", [size for size in (248, *SIZES) if size % 8 == 0])
def test_a_device_finds_the_same(page_bytes: int) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    from kernels.page_sums.triton import page_sums

    pages = some_pages(page_bytes)
    numbers = torch.tensor(AT, dtype=torch.int32, device=DEVICE)
    sums = torch.full((len(AT),), -1, dtype=torch.int64, device=DEVICE)
    page_sums(torch.from_numpy(pages).to(DEVICE), numbers, sums)
    assert sums.cpu().numpy().view(np.uint64).tolist() == known_sums(pages)
