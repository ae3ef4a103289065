"""Which vLLM caches may exchange KV."""

from collections.abc import Sequence
from hashlib import blake2b

from services.worker.core.vllm.messages import Registered
from shared.blocks import BLOCK_TOKENS


def continue_fingerprint(weights: blake2b, connectors: Sequence[Registered]) -> str:
    """Of a model whose weights and configuration have this hash.

    Args:
        connectors: the scheduler's, and each rank's in order.
    """
    scheduler, first = connectors[0], connectors[1]
    num_ranks = len(connectors) - 1
    kind = f"vllm:{scheduler.version}:{first.layout}:{BLOCK_TOKENS}:{num_ranks}"
    weights.update(kind.encode())
    return weights.hexdigest()
