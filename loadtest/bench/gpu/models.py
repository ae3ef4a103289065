"""The shapes that are measured, and a model of such a shape made on the device."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from services.worker.device.copying.copies import HostCopier, PageCopier
from services.worker.device.copying.mover import Moved
from services.worker.device.copying.piecewise_copier import PiecewiseCopier
from services.worker.device.decoder.attention import ATTENTION
from services.worker.device.decoder.loaded_model import LoadedModel, prepare_model
from services.worker.device.forward import use_own_forward
from services.worker.device.gpu.gpu_executor import DeviceApi, GpuExecutor
from services.worker.device.gpu.recordings import Launch, Recorder
from services.worker.device.layers import Mode, speed_up
from shared.arena import Arena

SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShape:
    """A model's shape, and how much is asked of it.

    Attributes:
        batches: turns at once, of every figure that is measured at several.
        context: tokens of each of those turns' prompts, and `new_tokens` of its reply.
        short: tokens of a short prompt.
        prefill: tokens of a prompt, of which `prompts` come at once.
        adapters: distinct ones, of `lora_rank`.
        history: tokens that a returning turn brings; `sessions` return to a pool that holds
            `sessions_in_pool`.
        large_bytes: of the one copy and matrix that ceilings are measured with.
    """

    name: str
    num_layers: int
    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int
    dtype: torch.dtype
    batches: tuple[int, ...]
    context: int
    new_tokens: int
    short: int
    prefill: int
    prompts: int
    adapters: int
    lora_rank: int
    history: int
    sessions: int
    sessions_in_pool: int
    large_bytes: int
    matrix: int

    @property
    def token_bytes(self) -> int:
        """KV of one token in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def weight_bytes(self) -> int:
        """Of all linear layers, which a step reads whole; of the embedding it reads some rows."""
        elements = self.matmul_flops // 2 + self.hidden * self.vocab
        return elements * self.dtype.itemsize

    @property
    def matmul_flops(self) -> int:
        """Of one token through all linear layers but the head."""
        attention = self.hidden * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        return 2 * self.num_layers * (attention + 3 * self.hidden * self.intermediate)

    def prefill_flops(self, length: int) -> float:
        """Of a prompt of so many tokens."""
        scores = 2 * self.num_layers * self.num_heads * self.head_dim * length * (length + 1)
        return self.matmul_flops * length + scores


EIGHT_B = GpuShape(
    name="8B", num_layers=32, hidden=4096, intermediate=14336, num_heads=32, num_kv_heads=8,
    head_dim=128, vocab=128256, dtype=torch.bfloat16, batches=(1, 16, 64), context=2000,
    new_tokens=128, short=16, prefill=4096, prompts=32, adapters=32, lora_rank=16, history=8000,
    sessions=30, sessions_in_pool=12, large_bytes=1 << 30, matrix=8192,
)  # fmt: skip
ONE_B = replace(
    EIGHT_B, name="1B", num_layers=16, hidden=2048, intermediate=8192, num_heads=32, head_dim=64
)
TINY = GpuShape(
    name="tiny", num_layers=2, hidden=64, intermediate=128, num_heads=4, num_kv_heads=2,
    head_dim=16, vocab=512, dtype=torch.float32, batches=(1, 4), context=130,
    new_tokens=12, short=16, prefill=192, prompts=3, adapters=3, lora_rank=4, history=320,
    sessions=5, sessions_in_pool=2, large_bytes=1 << 20, matrix=128,
)  # fmt: skip
HOST_BUCKETS = (1, 4, 16, 96)  # tokens of passes that are repeated without a GPU
EIGHT_B_BYTES = 60 << 30  # of device memory: weights, the pool, adapters, the largest pass


def bench_device() -> torch.device:
    """The GPU, or the CPU where there is none."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def bench_shape(device: torch.device) -> GpuShape:
    """The largest shape that a device has room for."""
    if device.type != "cuda":
        return TINY
    has_room = torch.cuda.get_device_properties(device).total_memory >= EIGHT_B_BYTES
    return EIGHT_B if has_room else ONE_B


def make_model(device: torch.device, shape: GpuShape, *, layers: Mode = "fast") -> LoadedModel:
    """Random weights from a seed, made where they are used; with fast layers it takes adapters, as
    in a deployment that has some.

    Raises:
        AssertionError: with fast layers it says something else.
    """
    config = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab,
        max_position_embeddings=16384,
    )
    torch.manual_seed(SEED)
    with device:
        module = AutoModelForCausalLM.from_config(
            config, dtype=shape.dtype, attn_implementation=ATTENTION
        )
    model = prepare_model(module, shape.name)
    if layers == "fast":
        made = speed_up(module)
        assert made is not None, "fast layers do not compute the same"
        parts = made.merged, made.norms, made.mlps, made.rotaries
        assert device.type != "cuda" or all(parts), f"not all layers are fast: {made}"
        use_own_forward(model)
        model.let_adapters()
    model.fingerprint = f"bench {shape.name}"
    return model


def make_executor(
    model: LoadedModel,
    num_pages: int,
    turns_max: int,
    on_moved: Callable[[Moved], None],
    *,
    is_recorded: bool = True,
) -> GpuExecutor:
    """The executor for GPUs; on a CPU without what is CUDA's."""
    if model.device.type == "cuda":
        from services.worker.device.gpu.cuda import cuda_executor

        executor = cuda_executor(
            model, "bench", num_pages, turns_max, on_moved, is_recorded=is_recorded
        )
    else:
        recorder = None if not is_recorded else Recorder(repeat, _unlimited, 1 << 40, HOST_BUCKETS)
        api = DeviceApi(host_copier, recorder)
        executor = GpuExecutor(model, "bench", num_pages, turns_max, api, on_moved)
    record_all(executor)
    return executor


def wait_registered(copier: PageCopier, arena: Arena) -> None:
    """Until copies from and to an arena that was attached are as fast as they become."""
    if isinstance(copier, PiecewiseCopier):
        copier.wait_registered(arena)


def record_all(executor: GpuExecutor) -> None:
    """Until nothing is left to be recorded, as between the steps of a worker."""
    while executor.num_unrecorded:
        executor.record_next()


def _unlimited() -> int:
    return 1 << 42


def repeat(launch: Launch) -> Launch:
    """Stands in for a device's recorded launches: it is launched again, into the same memory."""
    kept = launch().clone()
    return lambda: kept.copy_(launch())


def host_copier(pool: torch.Tensor) -> PageCopier:
    return HostCopier(pool.view(torch.uint8).numpy().reshape(len(pool), -1))
