"""`bench gpu` runs on a tiny shape where there is no GPU, and checks before it measures."""

import pytest
import torch

from kernels.paged_attention import paged_attention
from loadtest.bench import gpu
from loadtest.bench.gpu import checks


def test_every_figure_is_there() -> None:
    figures = gpu.run(["--rounds", "1"])
    assert figures["checks"]["tokens_equal"] == 2 * 24
    assert {"memory_gb_per_s", "matrix_tflops"} <= figures["ceilings"].keys()
    assert figures["attention"]["prefill_share_of_matrix"] > 0
    assert figures["copies"]["to_device_share_of_link"] > 0
    wanted = {
        "decode_share_of_memory_batch_1",
        "decode_host_share_batch_4",
        "prefill_share_of_matrix",
        "returning_over_slower_part",
        "returning_recomputed_ms",
        "write_behind_costs_share_of_decode",
    }
    assert wanted <= figures["engine"].keys()


def test_a_wrong_kernel_is_found_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    monkeypatch.setattr(checks, "paged_attention", lambda *given: paged_attention(*given) * 1.001)
    with pytest.raises(AssertionError, match=r"attention in torch.float32 is wrong by 0.001"):
        checks.check_all(torch.device("cpu"))
