"""Scattered pages are copied by one launch: on a GPU, or in Triton's interpreter."""

import pytest
import torch

from tests.kernels.interpreter import DEVICE, NEEDS_DEVICE, gpu_only

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = NEEDS_DEVICE


@pytest.mark.parametrize("page_bytes", [8, 1000, 16384, 40000])
@pytest.mark.parametrize("num_pages", [1, 7])
def test_these_pages_and_no_others_are_copied(page_bytes: int, num_pages: int) -> None:
    from kernels.page_copy import copy_pages

    source, target = (
        torch.randint(0, 255, (9, page_bytes), dtype=torch.uint8, device=DEVICE) for _ in range(2)
    )
    of, to = (torch.randperm(9)[:num_pages].tolist() for _ in range(2))
    wanted = target.clone()
    wanted[to] = source[of]
    copy_pages(target, to, source, of)
    assert torch.equal(target, wanted)


def test_more_chunks_than_programs_are_all_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels import page_copy

    monkeypatch.setattr(page_copy, "PROGRAMS", 3)
    monkeypatch.setattr(page_copy, "WRITING_PROGRAMS", 3)
    source = torch.randint(0, 255, (5, 50_000), dtype=torch.uint8, device=DEVICE)
    target = torch.zeros_like(source)
    page_copy.copy_pages(target, [4, 3, 2, 1, 0], source, [0, 1, 2, 3, 4])
    assert torch.equal(target, source.flip(0))


@gpu_only  # the interpreter reads any memory
def test_registered_host_memory_is_read_and_written_by_the_gpu() -> None:
    from kernels.page_copy import copy_pages

    host = torch.randint(0, 255, (6, 65536), dtype=torch.uint8).pin_memory()
    pool = torch.zeros((4, 65536), dtype=torch.uint8, device="cuda")
    copy_pages(pool, [3, 1], host, [5, 0])
    copy_pages(host, [2], pool, [3])
    torch.cuda.synchronize()
    assert torch.equal(pool[[3, 1]].cpu(), host[[5, 0]])
    assert torch.equal(host[2], host[5])
