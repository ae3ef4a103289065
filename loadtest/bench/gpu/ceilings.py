"""What the hardware gives at most, measured by the largest and simplest work of each kind."""

from typing import Any

import torch

from loadtest.bench.gpu.models import GpuShape
from loadtest.bench.gpu.timing import median_s, per_call_s


def measure_ceilings(device: torch.device, shape: GpuShape, rounds: int) -> dict[str, float]:
    """Memory (bytes read and written), matrix products, and the link in both directions."""
    size = shape.large_bytes
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = per_call_s(device, lambda _: target.copy_(source), rounds)
    figures = {"memory_gb_per_s": 2 * size / copy_s / 1e9}
    side = shape.matrix
    a, b = (torch.randn((side, side), device=device).to(shape.dtype) for _ in range(2))
    product_s = per_call_s(device, lambda _: a @ b, rounds)
    figures["matrix_tflops"] = 2 * side**3 / product_s / 1e12
    host = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    down_s = median_s(device, lambda: host.copy_(source, non_blocking=True), rounds)
    up_s = median_s(device, lambda: target.copy_(host, non_blocking=True), rounds)
    figures["link_to_device_gb_per_s"] = size / up_s / 1e9
    figures["link_to_host_gb_per_s"] = size / down_s / 1e9
    return rounded(figures)


def rounded(figures: dict[str, Any]) -> dict[str, Any]:
    """Four digits are more than such figures are good for."""
    return {
        name: float(f"{value:.4g}") if isinstance(value, float) else value
        for name, value in figures.items()
    }
