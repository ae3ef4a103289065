"""What figures that are measured on this machine have in common."""

import os
from pathlib import Path

import torch

from loadtest.models import MODELS_DIR, make_llama_125m
from loadtest.papers.base import Effort, Results
from services.worker.device.layers.packed import can_pack
from services.worker.models.demo_model import make_demo_model

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
CPU_INFO = Path("/proc/cpuinfo")
# What products of matrices are made with, the best first.
_INSTRUCTIONS = {
    "_is_amx_tile_supported": "AMX",
    "_is_avx512_bf16_supported": "AVX512_BF16",
    "_is_avx512_supported": "AVX512",
    "_is_avx2_supported": "AVX2",
}


def here() -> Results:
    """Where results come from: ``machine`` and ``dtype``, the `native_dtype`."""
    return {"machine": machine(), "dtype": native_dtype()}


def machine() -> str:
    """Cores, processor, and what that multiplies matrices with: ``2 cores of AMD EPYC (AVX2)``."""
    asked = (word for name, word in _INSTRUCTIONS.items() if getattr(torch.cpu, name, bool)())
    cores = len(os.sched_getaffinity(0))
    return f"{cores} core{'s' * (cores > 1)} of {_processor()} ({next(asked, 'no AVX2')})"


def native_dtype() -> str:
    """``bfloat16`` where the processor has instructions for products of it, else ``float32``: torch
    takes several times as long to multiply bf16 without them, and no ratio would mean anything."""
    return "bfloat16" if can_pack(torch.bfloat16) else "float32"


def model_folder(effort: Effort, dtype: str, folder: Path) -> Path:
    """The model of 125 M where benchmarks keep it, made if need be; for tiny efforts the demo
    model, made in `folder`."""
    if effort.level == "tiny":
        return make_demo_model(folder / "demo")
    return make_llama_125m(MODELS_DIR, dtype)


def real(results: Results, besides: str = "") -> str:
    """How a row was come to: measured, and on what.

    Args:
        besides: what was not as it is in service, such as a link that is simulated.

    >>> real({"machine": "2 cores of X (AVX2)", "dtype": "float32"}, "link of 100 MB/s simulated")
    'real: 2 cores of X (AVX2), float32; link of 100 MB/s simulated'
    """
    text = f"real: {results['machine']}, {results['dtype']}"
    return f"{text}; {besides}" if besides else text


def _processor() -> str:
    """Its name, without what every name has in it."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    names = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    name = names[0] if names else "an unknown processor"
    return " ".join(name.replace("(R)", "").replace("(TM)", "").replace(" CPU", "").split())
