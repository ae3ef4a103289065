"""Published figures of GPUs, and what a model's passes take on one by them.

A profile that is made so follows the same sums as those in `shared/profiles.py`, which
`tests/unit/loadtest/planning/test_gpus.py` holds it against. None of them was measured.
"""

from dataclasses import dataclass

from shared.errors import InvalidRequest
from shared.profiles import LatencyProfile, kv_bytes

# What a server reaches of a data sheet's figures, as the profiles at hand reckon.
BANDWIDTH_SHARE, FLOPS_SHARE, MEMORY_SHARE = 0.75, 0.55, 0.9
DECODE_MS, DECODE_AT_GB_PER_S = 0.05, 2039.0  # a guess: sampling and launches of a row, on an A100
FLOPS_A_WEIGHT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Of a data sheet: memory, its bandwidth, and dense bf16."""

    memory_gb: float
    gb_per_s: float
    tflops: float


# NVIDIA's data sheets; where a card has several forms, the SXM one.
GPUS = {
    "a10": Gpu(memory_gb=24, gb_per_s=600, tflops=125),
    "a100": Gpu(memory_gb=80, gb_per_s=2039, tflops=312),
    "a100-40gb": Gpu(memory_gb=40, gb_per_s=1555, tflops=312),
    "b200": Gpu(memory_gb=180, gb_per_s=8000, tflops=2250),
    "h100": Gpu(memory_gb=80, gb_per_s=3352, tflops=989),
    "h200": Gpu(memory_gb=141, gb_per_s=4800, tflops=989),
    "l4": Gpu(memory_gb=24, gb_per_s=300, tflops=121),
    "l40s": Gpu(memory_gb=48, gb_per_s=864, tflops=362),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """What of a model its passes go by.

    Attributes:
        num_weights: all that a pass reads.
        dtype_bytes: of a weight, and of an element of KV.
        tokens_max: of a prompt and its answer.
    """

    name: str
    num_weights: int
    num_layers: int
    num_kv_heads: int
    head_size: int
    dtype_bytes: int
    tokens_max: int

    @property
    def weights_bytes(self) -> int:
        """All of them."""
        return self.num_weights * self.dtype_bytes


def derive_profile(sizes: ModelSizes, gpu_name: str) -> LatencyProfile:
    """A model on a GPU.

    Raises:
        InvalidRequest: there are no figures of this GPU, or the model does not fit on one.
    """
    if (gpu := GPUS.get(gpu_name)) is None:
        raise InvalidRequest(f"--gpu {gpu_name}: use one of {', '.join(GPUS)}", "gpu")
    token_bytes = kv_bytes(
        num_layers=sizes.num_layers,
        num_kv_heads=sizes.num_kv_heads,
        head_size=sizes.head_size,
        dtype_bytes=sizes.dtype_bytes,
    )
    left_bytes = MEMORY_SHARE * gpu.memory_gb * 1e9 - sizes.weights_bytes
    if left_bytes < token_bytes:
        raise InvalidRequest(
            f"--gpu {gpu_name}: {sizes.name} has {sizes.weights_bytes / 1e9:.0f} GB of weights, "
            f"and one has {gpu.memory_gb:g} GB; a model is not divided among GPUs",
            "gpu",
        )
    bytes_per_ms = BANDWIDTH_SHARE * gpu.gb_per_s * 1e6
    # float32 is computed at half of that, if not worse
    flops_per_ms = FLOPS_SHARE * gpu.tflops * 1e9 * min(2 / sizes.dtype_bytes, 1)
    return LatencyProfile(
        name=f"{sizes.name} on {gpu_name}",
        base_ms=sizes.weights_bytes / bytes_per_ms,
        prefill_ms_per_token=FLOPS_A_WEIGHT * sizes.num_weights / flops_per_ms,
        decode_ms_per_turn=DECODE_MS * DECODE_AT_GB_PER_S / gpu.gb_per_s,
        context_ms_per_token=token_bytes / bytes_per_ms,
        num_layers=sizes.num_layers,
        kv_bytes_per_token=token_bytes,
        max_model_len=sizes.tokens_max,
        num_kv_tokens=int(left_bytes / token_bytes),
    )
