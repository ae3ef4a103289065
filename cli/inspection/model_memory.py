"""Whether models fit into memory, seen before they are loaded."""

import os
from collections.abc import Sequence

from cli.start.gpus import GpusUnknown, free_memory, visible_gpus
from services.worker.config import WorkerConfig
from services.worker.load import CPU_KV_BYTES
from services.worker.models.checkpoint import Checkpoint
from shared.errors import ConfigError
from shared.runtime.memory import measure_memory

GIB = 1024**3


def check_memory(
    checkpoints: Sequence[Checkpoint], config: WorkerConfig, num_workers: int = 1
) -> str:
    """See that weights and KV pools fit; how much they take, for people.

    Args:
        num_workers: of this machine, each with all models.

    Raises:
        ConfigError: they do not: into what is free of a worker's GPU, or into this machine's memory
            at all. What others use of that may be free in time, so that it is not counted.
    """
    weights = sum(each.bytes_as(config.dtype) for each in checkpoints)
    num_pools = sum(each.is_generative for each in checkpoints)
    gpus = _gpus(config)
    if not gpus:
        # Workers map the same files, so that weights are there once.
        pools = num_pools * num_workers * (config.kv_bytes or CPU_KV_BYTES)
        total = measure_memory().total_bytes
        needs = f"{_gib(weights)} of weights and {_gib(pools)} of KV"
        if weights + pools > total:
            raise ConfigError(
                f"{needs} do not fit into this machine's {_gib(total)} of memory: set "
                "SYMPHONY_KV_BYTES lower, or take fewer workers or a smaller model"
            )
        return f"{needs}, of {_gib(total)}"
    pools = num_pools * config.kv_bytes
    needs = f"{_gib(weights)} of weights" + (f" and {_gib(pools)} of KV" if pools else "")
    for gpu in gpus[:num_workers]:
        if (memory := free_memory(gpu)) is not None and weights + pools > memory.available_bytes:
            raise ConfigError(
                f"{needs} do not fit into GPU {gpu}: {_gib(memory.available_bytes)} of its "
                f"{_gib(memory.total_bytes)} are free: stop what uses it, take a smaller model, or "
                "serve it by vLLM on several GPUs (docs/engines.md)"
            )
    return f"{needs}, which fit into a GPU"


def _gpus(config: WorkerConfig) -> list[str]:
    try:
        return [] if config.device == "cpu" else visible_gpus(os.environ)
    except GpusUnknown:
        return []


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"
